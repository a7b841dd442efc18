"""The record of an order, and its observers."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

Hook = Callable[["Record"], None]


class Record:
    """An order. It has no constructor, which would take half a microsecond of each call.

    Attributes:
        acts: its prepared acts, each with its `act`, `label`, and `nbytes` of inputs.
        times: seconds of computing, by act and rank, once all ranks have performed it.
        scatter_s: seconds in which the master checked, planned and copied inputs.
        serial: its number; 0 until it is given.
        run_s: seconds from then to its end.
    """

    acts: Sequence[Any]
    times: Any
    scatter_s = 0.0
    run_s = 0.0
    serial = 0


class Observers:
    """Hooks of those that follow the orders of a runtime, by name.

    Attributes:
        before: called before an order is given; an error prevents it.
        after: called when all ranks have performed it.
        failed: called when it failed on some rank, unless that has closed the runtime.
        forget_function: called with the number of a function that the program has dropped.
        forget_variables: called with the numbers of shared variables that it has dropped.
        close: called when the runtime has ended.
    """

    def __init__(self) -> None:
        self.before: List[Hook] = []
        self.after: List[Hook] = []
        self.failed: List[Hook] = []
        self.forget_function: List[Callable[[int], None]] = []
        self.forget_variables: List[Callable[[Sequence[int]], None]] = []
        self.close: List[Callable[[], None]] = []

    def add(self, *observers: Any) -> None:
        """Call those of their methods that have the name of a hook."""
        for observer in observers:
            for name, hooks in vars(self).items():
                if hasattr(observer, name):
                    hooks.append(getattr(observer, name))
