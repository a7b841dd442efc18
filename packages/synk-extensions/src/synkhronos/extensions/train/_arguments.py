"""What a training step and a Trainer are given, checked and brought into one form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from theano.compile import SharedVariable

from ._state import TrainingState, storage_of

_LOSS = "loss"  # the name of the first output's column


def names_of_outputs(known: Sequence[Any], given: Sequence[str] | None) -> list[str]:
    """Names of a training step's outputs but the loss.

    Args:
        known: Those of the expressions, or None, of all outputs.
        given: By the user, or None.

    Raises:
        ValueError: It is another number, or two are the same.
    """
    further = list(known[1:])
    if given is None:
        usable = [name if name != _LOSS and further.count(name) == 1 else None for name in further]
        return [name or f"output_{i}" for i, name in enumerate(usable, 1)]
    require_distinct(given, "output_names")
    if len(given) != len(further):
        raise ValueError(
            f"output_names: got {list(given)}; expected {len(further)}, one for each output of "
            "train but the loss"
        )
    return list(given)


def call_of_1_0(
    count: int, data: tuple[Any, ...], batch: Any, named_data: dict[str, Any]
) -> tuple[tuple[Any, ...], Any]:
    """Bring the call of release 1.0, ``train(x_data, y_data, batch)``, into today's form.

    Args:
        count: how many inputs the step has.
        data: values by place.
        batch: as given by name.
        named_data: values by name; ``x_data`` and ``y_data`` are taken out of it.

    Returns:
        The values of inputs by place, and the batch.
    """
    if count != 2:  # as it was
        return data, batch
    if len(data) == 3 and batch is None:
        return data[:2], data[2]
    names = [name for name in ("x_data", "y_data")[len(data) :] if name in named_data]
    return (*data, *(named_data.pop(name) for name in names)), batch


def require(value: str, what: str, known: Sequence[str]) -> None:
    """
    Raises:
        ValueError: The value is not among those known.
    """
    if value not in known:
        raise ValueError(f"{what} is {value!r}; expected one of {', '.join(map(repr, known))}")


def require_distinct(names: Sequence[str], what: str) -> None:
    """
    Raises:
        ValueError: Two columns of the log would have one name.
    """
    if len({_LOSS, *names}) != 1 + len(names):
        raise ValueError(
            f"{what} is {list(names)}; expected different names, and none that is {_LOSS!r}, which "
            "is the first output"
        )


def require_rows(data: Sequence[Any], what: str) -> None:
    """
    Raises:
        ValueError: Not all have the same number of rows, or one is a scalar.
    """
    rows = [len(item) if item.ndim else "no" for item in data]
    if len(set(rows)) > 1 or "no" in rows:
        raise ValueError(f"{what} has {rows} rows; expected the same number for all inputs")


def require_rate(rate: Any, state: TrainingState) -> None:
    """
    Raises:
        TypeError: It is no shared variable.
        ValueError: The training step does not read it.
    """
    if not isinstance(rate, SharedVariable) or rate.ndim != 0:
        raise TypeError(
            f"learning_rate is {rate!r}; expected the scalar shared variable that the update rule "
            "takes for its rate, such as theano.shared(numpy.float32(0.1))"
        )
    if storage_of(rate) not in map(storage_of, state.read):
        raise ValueError(
            f"learning_rate is {rate!r}, which the training step does not read; expected the "
            "variable that make_train_function was given for learning_rate"
        )


def require_number(loss: float, step: int, terminate: bool) -> None:
    """End a training whose loss is no finite number, or warn once, at the line that called `run()`.

    Raises:
        FloatingPointError: It is not, and the run is to be ended by that.
    """
    if math.isfinite(loss):
        return
    told = f"the training loss is {loss}; after that parameters mostly are no numbers either"
    cure = "synkhronos.watch_finite() before the run stops at the first, and names its row"
    if terminate:
        raise FloatingPointError(
            f"{told}: ended after step {step}, without a checkpoint of it. {cure}; "
            "Trainer(terminate_on_nan=False) goes on"
        )
    warnings.warn(f"{told}. {cure}", stacklevel=5)  # without the step: always the same text


def finite(value: Any, what: str) -> float:
    """The value as a float.

    Raises:
        TypeError, ValueError: It is no number, or not a finite one.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {value!r}; expected a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; expected a finite number")
    return number
