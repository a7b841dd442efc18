"""The states of a runtime, the faults, and which of their combinations make sense."""

from __future__ import annotations

import signal
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import pytest

from synk_core._watch.flight import Phase


class State(NamedTuple):
    """What a runtime does when a fault strikes.

    Attributes:
        name: of the state.
        act: of `Bench`, that leads into it.
        place: phase, detail and how often it is passed before.
        doing: what `WorkerDied` says that the worker was doing.
        interrupts: whether a Ctrl-C reaches a worker there at once.
    """

    name: str
    act: str
    place: Tuple[int, int, int]
    doing: str
    interrupts: bool = False

    @property
    def is_order(self) -> bool:
        """Whether an order is under way."""
        return self.name not in {"idle", "closing"}


F = "function 'f'"

STATES = [
    State("idle", "compute", (Phase.IDLE, 0, 0), "waiting for an order"),
    State("distributing", "distribute", (Phase.DISTRIBUTE, 0, 0), "taking over functions"),
    State("copying", "copy", (Phase.COPY, 0, 0), f"copying rows for {F}", True),
    State("computing", "compute", (Phase.COMPUTE, 0, 0), f"computing {F}", True),
    State("slicing", "slice", (Phase.SLICE, 2, 0), f"computing slice 2 of {F}", True),
    State("reducing", "reduce", (Phase.REDUCE, 0, 0), f"in the reduction of {F}"),
    State("all_reduce", "all_reduce", (Phase.COLLECTIVE, 0, 0), "in all_reduce()"),
    State("broadcast", "broadcast", (Phase.COLLECTIVE, 0, 0), "in broadcast()"),
    State("gather", "gather", (Phase.COLLECTIVE, 0, 0), "in gather()"),
    # In the third of three acts.
    State("step", "step", (Phase.COMPUTE, 0, 1), f"computing {F}", True),
    State("growing", "grow", (Phase.TAKE_IN, 0, 0), "taking in what is new"),
    # When all that is left is to hear that the others are done.
    State(
        "ending", "end", (Phase.END, 0, 0), "waiting until all ranks are done with function 'quiet'"
    ),
    State("closing", "close", (Phase.CLOSE, 0, 0), "closing"),
]


class Fault(NamedTuple):
    """What strikes.

    Attributes:
        name: of the fault.
        who: "worker" or "master": who does something to itself; "parent": the test kills the
            master with `argument` while a worker does something to itself; "ctrl-c": the master
            gets `argument` of them meanwhile.
        deed: of `_fault_inflict`, and its argument.
    """

    name: str
    who: str
    deed: str
    argument: float = 0


DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT")

SLOW_S = 0.8
"""By so much a slow worker is late."""

FAULTS = [
    Fault("raises", "worker", "fail"),
    *(Fault(name, "worker", "kill", signal.Signals[name]) for name in DEADLY),
    Fault("SIGSTOP", "worker", "kill", signal.SIGSTOP),
    Fault("slow", "worker", "sleep", SLOW_S),
    Fault("memory", "worker", "run_out_of_memory"),
    Fault("huge", "worker", "ask_for_too_much"),
    Fault("master-raises", "master", "fail"),
    Fault("master-memory", "master", "run_out_of_memory"),
    Fault("ctrl-c", "ctrl-c", "sleep", 1),
    Fault("ctrl-c-twice", "ctrl-c", "hold", 2),
    Fault("master-SIGTERM", "parent", "hold", signal.SIGTERM),
    Fault("master-SIGHUP", "parent", "hold", signal.SIGHUP),
    Fault("master-SIGKILL", "parent", "hold", signal.SIGKILL),
]

ERRORS = {"raises", "memory", "huge"}
"""Faults that are exceptions of a worker's."""


def senseless(state: State, fault: Fault) -> Optional[str]:
    """Why a combination is left out; None if it is not."""
    raises = fault.name in ERRORS or fault.who == "master"
    if state.name == "idle" and raises:
        return "nothing runs there that could raise"
    if state.name == "ending" and raises:
        return "a rank has done all that can fail when it says that it is done"
    if state.name == "closing" and raises:
        return "nothing but the process's end follows"
    if fault.name == "ctrl-c-twice" and not state.is_order:
        return "the first one has ended it"
    return None


class Setting(NamedTuple):
    """In what kind of runtime."""

    name: str
    size: int = 2
    backend: str = "shm"
    master_rank: int = 0
    atomic: bool = True

    @property
    def options(self) -> Dict[str, Any]:
        return {
            "n_parallel": self.size,
            "backend": self.backend,
            "master_rank": self.master_rank,
            "atomic": self.atomic,
        }

    @property
    def struck(self) -> int:
        """The rank of the worker that a fault strikes: the last."""
        return max(rank for rank in range(self.size) if rank != self.master_rank)


SETTINGS = [
    Setting(""),
    Setting("3-zmq", size=3, backend="zmq"),
    Setting("3-master1", size=3, master_rank=1),
    Setting("in-place", atomic=False),
]

BY_DAY = {
    ("computing", "raises", ""),
    ("all_reduce", "SIGKILL", ""),
    ("reducing", "SIGSTOP", ""),
    ("step", "ctrl-c", ""),
    ("growing", "master-memory", ""),
    ("idle", "master-SIGKILL", ""),
}
"""One fault of each class; by night each in every state and setting."""


def cases(who: str) -> List[Any]:
    """The combinations in which one of these strikes, as parameters named "state-fault"."""
    return [
        pytest.param(
            *(setting, state, fault),
            id="-".join(filter(None, names)),
            marks=() if names in BY_DAY else pytest.mark.nightly,
        )
        for setting in SETTINGS
        for state in STATES
        for fault in FAULTS
        for names in [(state.name, fault.name, setting.name)]
        if fault.who == who and senseless(state, fault) is None
    ]
