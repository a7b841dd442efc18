"""Switch the watch for values that are not finite."""

from __future__ import annotations

from typing import Any

from synk_core._master.orders import Orders
from synk_core._rank.workplace import Workplace
from synk_core._text import shown
from synk_core._wire.messages import WatchFinite
from synk_core._workers.interrupts import whole
from synk_core.exceptions import InputTypeError


class FiniteWatch:
    """Switches checking for values that are not finite on or off, on all ranks.

    Made by `synkhronos.watch_finite`. A context manager: the end of the block restores the state of
    before.

    Attributes:
        on: whether it switched checking on.
    """

    def __init__(self, watches: Watches, on: bool, before: bool) -> None:
        self.on = on
        self._watches = watches
        self._before = before
        self._stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "on" if self.on else "off"
        return f"<FiniteWatch, {state}>"

    def __enter__(self) -> FiniteWatch:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        whole(lambda: None, self.stop, always=True)

    def stop(self) -> None:
        """Restore the state of before; blocks until all ranks have. Idempotent, and harmless when
        the runtime is closed."""
        if not self._stopped:
            self._watches.restore_finite(self._before)
            self._stopped = True


class Watches:
    """The watches of one runtime."""

    def __init__(self, orders: Orders, here: Workplace) -> None:
        self._orders = orders
        self._here = here

    def watch_finite(self, on: Any) -> FiniteWatch:
        """Have all ranks check from now on, or stop checking."""
        if not isinstance(on, bool):
            raise InputTypeError(f"watch_finite(): on: got {shown(on)}, expected True or False")
        with self._orders.lock:
            return FiniteWatch(self, on, self._check(on))

    def restore_finite(self, on: bool) -> None:
        """Switch checking back, unless that is done or the runtime is closed."""
        if on != self.checks_finite and not self._orders.closed:
            with self._orders.lock:
                self._check(on)

    @property
    def checks_finite(self) -> bool:
        """Whether the ranks check for values that are not finite."""
        return self._here.check_finite[0] is not None

    def _check(self, on: bool) -> bool:
        """Switch; return whether the ranks checked before."""
        act = WatchFinite(on)
        was_on: bool = self._orders.perform_own(act, "watch_finite()", act)
        return was_on
