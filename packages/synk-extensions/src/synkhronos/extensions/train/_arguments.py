"""Check the arguments of training steps and of the Trainer, and convert them to one form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from synk_core.engine import NAME, SharedVariable

from ._state import TrainingState, storage_of

_FIND = "Call synkhronos.watch_finite() before the run to stop at the first such value and row"
_CURE = (
    "Go back to the newest checkpoint by trainer.resume(), and lower the learning rate or clip the "
    f"gradients (updates.clip_by_global_norm). {_FIND}; use Trainer(terminate_on_nan=False) to "
    "continue"
)
LOSS = "loss"
"""The name of the first output's column."""


def names_of_outputs(names: Sequence[Any]) -> list[str]:
    """Return the names of outputs: those of their expressions, or None, if they can be."""
    further = list(names[1:])
    usable = [name if name != LOSS and further.count(name) == 1 else None for name in further]
    return [LOSS, *(name or f"output_{i}" for i, name in enumerate(usable, 1))]


def call_of_1_0(
    count: int, data: tuple[Any, ...], batch: Any, named_data: dict[str, Any]
) -> tuple[tuple[Any, ...], Any]:
    """Return the positional values and the batch of a call, also ``train(x_data, y_data, batch)``.

    That is the form of 1.0; ``x_data`` and ``y_data`` are removed from ``named_data``.
    """
    if count != 2:  # 1.0 had two inputs
        return data, batch
    if len(data) == 3 and batch is None:
        return data[:2], data[2]
    names = [name for name in ("x_data", "y_data")[len(data) :] if name in named_data]
    return (*data, *(named_data.pop(name) for name in names)), batch


def data_and_rows(given: tuple[Any, ...], count: int) -> tuple[list[Any], Any]:
    """Return the data sets and the batches that ``steps()`` was given, of ``count`` inputs."""
    *data, batches = given or (None,)
    if not hasattr(batches, "__iter__") or len(data) not in (0, count):
        raise TypeError(
            f"steps(): got {len(given)} arguments, the last a {type(batches).__name__}; expected "
            f"one for each of {count} inputs, then an iterable of batches, or just an iterable of "
            "tuples of arrays"
        )
    return data, batches


def require(value: str, what: str, known: Sequence[str]) -> None:
    """Raise ValueError unless the value is a known one."""
    if value not in known:
        raise ValueError(f"{what} is {value!r}; expected one of {', '.join(map(repr, known))}")


def require_first_axis(axes: Sequence[int]) -> None:
    """Raise TypeError unless rows lie along axis 0, by which they are read from files."""
    if any(axes):
        raise TypeError(
            f"the rows lie along the axes {list(axes)}, by row_axis, and some are in a file, of "
            "which only rows along axis 0 are read; expected arrays in memory, or rows first"
        )


def require_rate(rate: Any, state: TrainingState) -> None:
    """Raise an error unless it is a scalar shared variable that the training step reads."""
    if not isinstance(rate, SharedVariable) or rate.ndim != 0:
        raise TypeError(
            f"learning_rate is {rate!r}; expected the scalar shared variable that the update rule "
            f"takes for its rate, such as {NAME}.shared(numpy.float32(0.1))"
        )
    if storage_of(rate) not in map(storage_of, state.read):
        raise ValueError(
            f"learning_rate is {rate!r}, which the training step does not read; expected the "
            "variable that make_train_function was given for learning_rate"
        )


def require_number(loss: float, step: int, terminate: bool) -> None:
    """Raise FloatingPointError if the loss is not finite; or warn, where run() was called."""
    if math.isfinite(loss):
        return
    problem = f"the training loss is {loss}; from here on most parameters are NaN as well"
    if terminate:
        raise FloatingPointError(
            f"{problem}: stopped after step {step}, without a checkpoint of it. {_CURE}"
        )
    # The same text for every step.
    warnings.warn(f"{problem}. {_FIND}", stacklevel=7)


def require_finite_params(params: Iterable[dict[str, Any]], step: int) -> None:
    """Raise FloatingPointError if one is not finite, though the loss of the same step is."""
    for param in params:
        if not all(np.isfinite(value).all() for value in param["values"]):
            name = param["name"] or "without a name"
            raise FloatingPointError(
                f"the parameter {name} is not finite after step {step}: stopped, without a "
                f"checkpoint of it. {_CURE}"
            )


def finite(value: Any, what: str) -> float:
    """Return the value as a float; raise ValueError if it is not finite."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; expected a finite number")
    return number


def at_least_one(name: str, number: Any) -> Any:
    """Return the number; raise ValueError if it is less than 1."""
    if number < 1:
        raise ValueError(f"{name} is {number}; expected at least 1")
    return number
