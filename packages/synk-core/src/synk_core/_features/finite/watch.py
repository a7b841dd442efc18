"""Switch the watch for values that are not finite."""

from __future__ import annotations

from typing import Any, List

from synk_core._features.feature import RuntimeFeature
from synk_core._master.orders import Orders
from synk_core._text import shown
from synk_core._wire.messages import Own
from synk_core._workers.interrupts import whole
from synk_core.exceptions import InputTypeError

from .search import watch_finite


class FiniteWatch:
    """Switches checking for values that are not finite on or off, on all ranks; made by
    `synkhronos.watch_finite`. A context manager, whose end restores the state before it.

    Args:
        check: of this rank; it contains None while that does not check.

    Attributes:
        on: whether it switched checking on.
    """

    def __init__(self, orders: Orders, check: List[Any], on: Any) -> None:
        if not isinstance(on, bool):
            raise InputTypeError(f"watch_finite(): on: got {shown(on)}, expected True or False")
        self.on = on
        self._orders, self._check = orders, check
        self._stopped = False
        self._before = self._switch(on)

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "on" if self.on else "off"
        return f"<FiniteWatch, {state}>"

    def __enter__(self) -> FiniteWatch:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        whole(lambda: None, self.stop, always=True)

    def stop(self) -> None:
        """Restore the state before it; blocks until all ranks have. Idempotent, and harmless if
        the runtime is closed."""
        if not self._stopped:
            if self._before != (self._check[0] is not None) and not self._orders.closed:
                self._switch(self._before)
            self._stopped = True

    def _switch(self, on: bool) -> bool:
        """Switch on all ranks; return whether they checked before."""
        act = Own(watch_finite, on)
        with self._orders.lock:
            was_on: bool = self._orders.perform_own(act, "watch_finite()", act)
        return was_on


class FiniteWatches(RuntimeFeature):
    """Finds the first value that is not finite."""

    def watch_finite(self, on: bool = True) -> FiniteWatch:
        """Find the first NaN or infinity; see `synkhronos.watch_finite`."""
        self.orders.require_open()
        return FiniteWatch(self.orders, self._rank.check, on)
