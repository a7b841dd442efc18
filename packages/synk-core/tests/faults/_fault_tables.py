"""The states of a runtime, the faults, and which of their combinations make sense."""

from __future__ import annotations

import signal
from typing import Any, Dict, List, NamedTuple, Tuple

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
    State("idle", "call", (Phase.IDLE, 0, 0), "waiting for an order"),
    State("distributing", "distribute", (Phase.DISTRIBUTE, 0, 0), "taking over functions"),
    State("copying", "copy", (Phase.COPY, 0, 0), f"copying rows for {F}", True),
    State("computing", "call", (Phase.COMPUTE, 0, 0), f"computing {F}", True),
    State("slicing", "slice", (Phase.SLICE, 2, 0), f"computing slice 2 of {F}", True),
    State("reducing", "call", (Phase.REDUCE, 0, 0), f"in the reduction of {F}"),
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
        who: "worker" or "master": who does something to itself; "ctrl-c": the master gets
            `argument` of them while a worker does something to itself.
        deed: of `_fault_inflict`, and its argument.
        outcome: of `Struck`, the method that says what is to come of it.
    """

    name: str
    who: str
    deed: str
    argument: float
    outcome: str


SLOW_S = 0.8
"""By so much a slow worker is late."""

FAULTS = [
    Fault("raises", "worker", "fail", 0, "is_a_failure"),
    Fault("memory", "worker", "run_out_of_memory", 0, "is_a_failure"),
    Fault("huge", "worker", "ask_for_too_much", 0, "is_a_failure"),
    Fault("SIGKILL", "worker", "kill", signal.SIGKILL, "is_a_death"),
    Fault("SIGSEGV", "worker", "kill", signal.SIGSEGV, "is_a_death"),
    Fault("SIGSTOP", "worker", "kill", signal.SIGSTOP, "is_a_stall"),
    Fault("slow", "worker", "sleep", SLOW_S, "is_late"),
    Fault("master-raises", "master", "fail", 0, "is_the_masters_own"),
    Fault("master-memory", "master", "run_out_of_memory", 0, "is_the_masters_own"),
    Fault("ctrl-c", "ctrl-c", "sleep", 1, "is_an_interrupt"),
    # A worker that computes in C does not listen: it is ended, at the second one at once.
    Fault("ctrl-c-deaf", "ctrl-c", "hold", 1, "is_an_end"),
    Fault("ctrl-c-fatal", "ctrl-c", "end_if_interrupted", 1, "is_an_end"),
    Fault("ctrl-c-twice", "ctrl-c", "hold", 2, "is_an_end"),
]


def makes_sense(state: State, fault: Fault) -> bool:
    """Whether the fault can strike in this state."""
    if fault.outcome in {"is_a_failure", "is_the_masters_own"}:
        # Nothing runs there that could raise, or a rank has done all that can fail.
        return state.name not in {"idle", "ending", "closing"}
    if fault.deed == "end_if_interrupted":
        return state.interrupts
    return fault.outcome != "is_an_end" or state.is_order


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
    ("computing", "ctrl-c-twice", ""),
    ("growing", "master-memory", ""),
}
"""One fault of each class; by night each in every state and setting."""


def cases() -> List[Any]:
    """The combinations that make sense, as parameters named "state-fault"."""
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
        if makes_sense(state, fault)
    ]
