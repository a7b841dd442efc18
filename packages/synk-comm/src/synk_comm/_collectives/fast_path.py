"""Calls that all ranks have made before, and the shortcuts for making them again."""

from __future__ import annotations

from typing import Any, Dict

from numpy import ndarray

from synk_comm._core.calls import decode
from synk_comm._core.fabric import Again, RepeatedCall, Shortcut
from synk_comm._core.steps import Steps

_ENTRIES = 512


class Learned(Dict[Any, Shortcut]):
    """Shortcuts by everything that this rank would say, and whether there is an ``out``."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def learn(self, key: Any, again: Again) -> None:
        """Keep a shortcut for the call that all ranks have just made, if there is one."""
        steps = self._steps
        if key is None or not steps.fabric.is_first_round:
            return
        heads = steps.fabric.heads()
        calls = [decode(head) for head in heads]
        if any(call.many and not call.on_devices for call in calls):
            return
        repeated = RepeatedCall(steps.guard, calls, heads, steps.timeout_s, again)
        shortcut = steps.fabric.shortcut(repeated)
        if shortcut is not None:
            if len(self) >= _ENTRIES:
                self.clear()
            self[key] = shortcut


def key_of(kind: str, x: Any, out: Any, timeout_s: float | None, *more: Any) -> Any:
    """Return what this rank would say, if a shortcut may say it; else None."""
    if timeout_s is not None or not (x is None or type(x) is ndarray):
        return None
    said = (kind, None if x is None else (x.dtype, x.shape), *more)
    if out is None:
        return said
    if type(out) is not ndarray or not out.flags.writeable:
        return None
    return (*said, out.dtype, out.shape)


def is_alike(x: Any, out: Any) -> bool:
    """Return whether an array can receive what is reduced from another."""
    return bool(out.dtype == x.dtype and out.shape == x.shape)
