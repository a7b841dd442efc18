"""A worker or the master fails, in every state and way, or Ctrl-C comes: nothing is half done."""

from __future__ import annotations

import signal
import threading
import time
import traceback
import warnings
from types import SimpleNamespace
from typing import NamedTuple, Tuple

import _fault_inflict as inflict
import pytest
from _fault_bench import Bench

import synk_shm
from synk_core import Runtime
from synk_core._master import orders
from synk_core._wire.flight import Phase
from synk_core._workers.interrupts import LATER
from synk_core.exceptions import StallWarning
from synk_testing import Leftovers

# On a busy machine starting stalls, too.
pytestmark = pytest.mark.filterwarnings("ignore::synk_core.exceptions.StallWarning")


class State(NamedTuple):
    name: str
    act: str  # of `Bench`, that leads into it
    place: Tuple[int, int, int]  # phase, detail and how often it is passed before
    doing: str  # what `WorkerDied` says that the worker was doing
    interrupts: bool = False  # whether a Ctrl-C reaches a worker there at once

    @property
    def is_order(self):
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
    State("step", "step", (Phase.COMPUTE, 0, 1), f"computing {F}", True),
    State("growing", "grow", (Phase.TAKE_IN, 0, 0), "taking in what is new"),
    # When all that is left is to hear that the others are done.
    State(
        "ending", "end", (Phase.END, 0, 0), "waiting until all ranks are done with function 'quiet'"
    ),
    State("closing", "close", (Phase.CLOSE, 0, 0), "closing"),
]


class Fault(NamedTuple):
    """A deed of a "worker" or the "master"; "ctrl-c" strikes the master `argument` times then."""

    name: str
    who: str
    deed: str  # of `_fault_inflict`
    argument: float
    outcome: str  # of `Struck`, the method that says what is to come of it


SLOW_S = 0.8

FAULTS = [
    Fault("raises", "worker", "fail", 0, "is_a_failure"),
    Fault("memory", "worker", "run_out_of_memory", 0, "is_a_failure"),
    Fault("SIGKILL", "worker", "kill", signal.SIGKILL, "is_a_death"),
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


def makes_sense(state, fault):
    if fault.outcome in {"is_a_failure", "is_the_masters_own"}:
        # Nothing runs there that could raise, or a rank has done all that can fail.
        return state.name not in {"idle", "ending", "closing"}
    if fault.deed == "end_if_interrupted":
        return state.interrupts
    return fault.outcome != "is_an_end" or state.is_order


class Setting(NamedTuple):
    name: str
    n_parallel: int = 2
    backend: str = "shm"
    master_rank: int = 0

    @property
    def struck(self):
        return max(rank for rank in range(self.n_parallel) if rank != self.master_rank)


SETTINGS = [
    Setting(""),
    Setting("3-zmq-master1", n_parallel=3, backend="zmq", master_rank=1),
]

BY_DAY = {
    ("computing", "raises", ""),
    ("computing", "slow", ""),
    ("all_reduce", "SIGKILL", ""),
    ("reducing", "SIGSTOP", ""),
    ("step", "ctrl-c", ""),
    ("computing", "ctrl-c-twice", ""),
    ("growing", "master-memory", ""),
}
"""One fault of each class; by night each in every state and setting."""


def cases():
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


STALL_S = 0.3
PATIENT_S = 30.0
HASTY_S = 1.5
"""The runtimes' `stall_s`, and `timeout_s`: the latter where a worker is to be given up."""

NOTICE_S = 1.0
"""Until the master has learnt what happened. The contract is 0.1 s; the rest is for machines that
are busy with something else."""

CLOSE_S = 3.0
DEAF_S = 10.0
LONG_S = 20.0
"""A worker's sleep that something ends; and in which workers have to listen on a busy machine."""

SHORT_S = 0.7


def mine():
    return [info.name for info in synk_shm.list() if info.mine]


class Benches:
    """One bench at a time, kept for the next case: to start a runtime takes the longest."""

    def __init__(self):
        self.bench, self.options = None, {}
        with Runtime(2, use_gpu=False) as runtime:  # what this process keeps for good
            runtime.distribute()

    def take(self, options):
        if self.options != options or self.bench.runtime.closed:
            self.end()
            self.look = Leftovers(segments=mine)
            self.options = options
            self.bench = Bench(Runtime(use_gpu=False, **options))
        return self.bench

    def end(self):
        if self.bench is not None:
            self.bench.runtime.close()
            self.bench, self.options = None, {}
            left = self.look.since(CLOSE_S)
            assert not any(left.values()), f"left behind: {left}"


@pytest.fixture(scope="module")
def benches(tmp_path_factory, pair):
    assert not pair.closed
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(inflict.MARK, str(tmp_path_factory.mktemp("faults") / "mark"))
        kept = Benches()
        yield kept
        kept.end()
    assert not pair.closed, "another runtime was disturbed"


@pytest.mark.parametrize("setting, state, fault", cases())
def test_a_fault(benches, monkeypatch, setting, state, fault):
    if state.name == "closing":  # they have to listen within these seconds
        monkeypatch.setattr(orders, "STOP_TIMEOUT_S", LONG_S)
    hasty = fault.outcome == "is_a_stall" and state.name != "closing"
    timeout_s = HASTY_S if hasty else PATIENT_S
    options = {**setting._asdict(), "stall_s": STALL_S, "timeout_s": timeout_s}
    del options["name"]
    struck = Struck(benches.take(options), setting, state, fault)
    if struck.closed:
        del struck.bench
        benches.end()
    if fault.who == "worker" or state.name != "idle":
        assert struck.since is not None, "the state was never entered"
    if state.name == "closing" and fault.who == "worker":
        assert struck.right, struck.error
        assert struck.call_s < CLOSE_S
    else:
        getattr(struck, fault.outcome)()


class Struck:
    """A case, run: its error, warnings and result, how long it took, and the values left."""

    def __init__(self, bench, setting, state, fault):
        self.bench = bench
        self.setting, self.state, self.fault = setting, state, fault
        self.striking = None
        bench.reset()
        inflict.struck().clear()
        inflict.laid().clear()
        self.observe(self.lay())
        self.closed = bench.runtime.closed
        self.found = bench.verdict(state.act)
        self.again = None
        if not self.closed:
            bench.reset()
            acts = (bench.gather, bench.copy, bench.slice, bench.step, bench.distribute, bench.grow)
            self.again = all(act() for act in acts)

    def lay(self):
        """Make the fault happen; return the act that it is to strike."""
        bench, state, fault = self.bench, self.state, self.fault
        act, argument, place = (
            getattr(bench, state.act),
            fault.argument,
            inflict.Place(*state.place),
        )
        if fault.who == "ctrl-c":
            strikes = (int(argument),)
            self.striking = threading.Thread(target=inflict.interrupt, args=strikes)
            self.striking.start()
            argument = LONG_S if state.interrupts else SHORT_S
            if state.name == "idle":
                return self.stay_idle
        if fault.who == "master":
            deed = getattr(inflict, fault.deed)
            inflict.lie_in_ambush(place, lambda: deed(argument), now=True)
        else:
            bench.arm(self.setting.struck, place, fault.deed, argument)
            inflict.laid().set()
            if place.phase == Phase.IDLE:
                inflict.struck().wait()
                time.sleep(0.05)
        return act

    def stay_idle(self):
        inflict.tell_now()
        time.sleep(LONG_S)

    def observe(self, act):
        self.error = self.right = None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            began = ended = time.monotonic()
            try:
                try:
                    self.right = act()
                finally:
                    ended = time.monotonic()
                    if self.striking is not None:
                        self.striking.join()
                # Ctrl-C in what cannot be undone any more comes with whatever is called next.
                LATER.at_the_next_chance()
            except BaseException as error:
                self.error = described(error)
        self.told = [str(one.message) for one in told if one.category is StallWarning]
        when = inflict.when_struck()
        self.call_s = ended - began
        self.since = None if when is None else ended - max(when, began)

    def is_a_failure(self):
        """The master raises an exception of a worker's, and all continues."""
        error = self.raised("WorkerFailed")
        assert error.rank == self.setting.struck
        assert error.others == {}
        assert f"in {self.fault.deed}" in error.traceback
        assert error.cause == self.kind_of_error()
        self.is_undone()

    def is_a_death(self):
        """A worker that is killed ends the call at once, and the runtime; nothing has changed."""
        error = self.raised("WorkerDied")
        assert (error.rank, error.signal) == (self.setting.struck, self.fault.name)
        assert self.state.doing in error.doing
        assert self.state.doing in error.message
        assert self.closed
        assert self.found <= {"same", "before"}, self.found
        assert self.since < NOTICE_S

    def is_a_stall(self):
        """The master names a worker that is stopped, with its state, and gives it up in the end."""
        error = self.raised("WorkerStalled")
        assert self.setting.struck in error.ranks
        assert "stopped" in error.stacks[self.setting.struck]
        assert "stopped" in error.message
        assert self.closed
        self.is_told("stopped")
        assert self.found <= {"same", "before"}, self.found
        assert self.since < HASTY_S + NOTICE_S

    def is_late(self):
        """The master names a worker that is late, with its stack; the result is right."""
        assert self.error is None, self.error
        assert self.right
        assert self.again
        self.is_told("in sleep")
        assert self.found <= {"same", "after"}
        assert self.since < SLOW_S + NOTICE_S

    def is_the_masters_own(self):
        """The master raises its own error as it is, and all continues."""
        self.raised(self.kind_of_error())
        self.is_undone()

    def is_an_interrupt(self):
        """Ctrl-C: KeyboardInterrupt; an order has happened on all ranks or on none."""
        self.raised("KeyboardInterrupt")
        if self.state.name == "closing":
            assert self.closed
            assert self.since < CLOSE_S
            return
        assert not self.closed, "it had time to listen"
        assert self.again
        whole = self.found <= {"same", "before"} or self.found <= {"same", "after"}
        assert whole, self.found
        assert self.since < NOTICE_S + (0 if self.state.interrupts else SHORT_S)

    def is_an_end(self):
        """Ctrl-C ends a worker that does not listen, raises, and closes the runtime."""
        error = self.raised("KeyboardInterrupt")
        assert self.fault.name != "ctrl-c-fatal" or error.cause == "WorkerDied"
        assert self.closed
        assert self.found <= {"same", "before"}, self.found
        assert self.since < (DEAF_S if self.fault.argument == 1 else CLOSE_S)

    def raised(self, name):
        assert self.error is not None, f"nothing was raised, expected {name}"
        assert self.error.type == name, f"expected {name}, got {self.error.where}"
        return self.error

    def kind_of_error(self):
        return "Injected" if self.fault.deed == "fail" else "MemoryError"

    def is_undone(self):
        assert not self.closed
        assert self.found <= {"same", "before"}
        assert self.again
        assert self.since < NOTICE_S

    def is_told(self, text):
        late = f"rank {self.setting.struck} has been {self.state.doing}"
        assert any(late in one and text in one for one in self.told), self.told


def described(error):
    """An exception without its frames, which keep what they have used."""
    names = ("rank", "signal", "doing", "ranks", "stacks", "traceback", "others")
    return SimpleNamespace(
        type=type(error).__name__,
        message=str(error),
        cause=None if error.__cause__ is None else type(error.__cause__).__name__,
        where="".join(traceback.format_exception(type(error), error, error.__traceback__)),
        **{name: getattr(error, name) for name in names if hasattr(error, name)},
    )
