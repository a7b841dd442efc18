"""What a Trainer is given, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._callbacks import Callback

if TYPE_CHECKING:
    from ._trainer import Trainer


class OnEpochEnd(Callback):
    """A plain function as a callback."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Call it."""
        self._function(trainer, record)


def as_callback(callback: Any) -> Callback:
    """
    Raises:
        TypeError: It is neither a Callback nor a function.
    """
    if isinstance(callback, Callback):
        return callback
    if callable(callback) and not isinstance(callback, type):
        return OnEpochEnd(callback)
    raise TypeError(
        f"got {callback!r} among callbacks; expected a Callback object or a function "
        "f(trainer, record)"
    )


def names_of_outputs(known: Sequence[Any], given: Sequence[str] | None) -> list[str]:
    """Names of a training step's outputs but the loss.

    Args:
        known: Those of the expressions, or None, of all outputs.
        given: By the user, or None.

    Raises:
        ValueError: It is another number.
    """
    further = known[1:]
    if given is None:
        return [name or f"output_{i}" for i, name in enumerate(further, 1)]
    if len(given) != len(further):
        raise ValueError(
            f"output_names: got {list(given)}; expected {len(further)}, one for each output of "
            "train but the loss"
        )
    return list(given)


def require(value: str, what: str, known: Sequence[str]) -> None:
    """
    Raises:
        ValueError: The value is not among those known.
    """
    if value not in known:
        raise ValueError(f"{what} is {value!r}; expected one of {', '.join(map(repr, known))}")
