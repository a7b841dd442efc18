"""A worker or the master fails, in every state and way, or Ctrl-C comes: the right error, in time,
nothing half done or left."""

from __future__ import annotations

import threading
import time
import traceback
import warnings
from types import SimpleNamespace

import _fault_inflict as inflict
import pytest
from _fault_bench import Bench
from _fault_tables import SLOW_S, cases

import synk_shm
from synk_core import Runtime
from synk_core._master import controller
from synk_core._watch.flight import Phase
from synk_core._workers.interrupts import LATER
from synk_core.exceptions import StallWarning
from synk_testing import Leftovers

# On a busy machine starting stalls, too.
pytestmark = pytest.mark.filterwarnings("ignore::synk_core.exceptions.StallWarning")

STALL_S = 0.3
PATIENT_S = 30.0
HASTY_S = 1.5
"""The runtimes' `stall_s`, and `timeout_s`: the latter where a worker is to be given up."""

NOTICE_S = 1.0
"""Until the master has learnt what happened. The contract is 0.1 s; the rest is for machines that
are busy with something else."""

CLOSE_S = 3.0
"""For `close()`, whose contract is 2 s."""

DEAF_S = 10.0
"""Until a worker is ended that does not listen."""

LONG_S = 20.0
"""A worker's sleep that something ends; and in which workers have to listen on a busy machine."""

SHORT_S = 0.7
"""A worker's sleep where no Ctrl-C reaches it."""


def mine():
    """What this process has in shared memory."""
    return [info.name for info in synk_shm.list() if info.mine]


class Benches:
    """One bench at a time, kept for the next case: to start a runtime takes the longest."""

    def __init__(self):
        self.bench, self.options = None, {}
        with Runtime(2, use_gpu=False) as runtime:  # what this process keeps for good
            runtime.distribute()

    def take(self, options):
        if self.options != options:
            self.end()
            self.look = Leftovers(segments=mine)
            self.options = options
            self.bench = Bench(Runtime(use_gpu=False, **options))
        return self.bench

    def end(self):
        """Close what is open; nothing of it is left."""
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
    # Seconds in which workers have to listen when they are told to stop.
    monkeypatch.setattr(controller, "TELL_TIMEOUT_S", LONG_S)
    hasty = fault.outcome == "is_a_stall" and state.name != "closing"
    timeout_s = HASTY_S if hasty else PATIENT_S
    options = {**setting.options, "stall_s": STALL_S, "timeout_s": timeout_s}
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
    """A case, run.

    Args:
        bench: that is struck.
        setting, state, fault: of the tables.

    Attributes:
        error, told, right: what was raised, the warnings, whether the result was right.
        call_s, since: how long it took, and since the fault; None if there was none.
        closed: whether the runtime is.
        found: which values there are.
        next_call, again: what came of the next call, and whether all works after a reset.
    """

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
        self.next_call = self.again = None
        if not self.closed:
            if not setting.atomic and self.error is not None:
                try:
                    self.next_call = bench.call()
                except Exception as error:
                    self.next_call = type(error).__name__
            bench.reset()
            acts = (bench.gather, bench.copy, bench.slice, bench.step, bench.distribute, bench.grow)
            self.again = all(act() for act in acts)

    def lay(self):
        """Have the fault happen; the act that it is to strike."""
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
        """Nothing is under way while it strikes."""
        inflict.tell_now()
        time.sleep(LONG_S)

    def observe(self, act):
        """What comes of an act, and when."""
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

    # What is to come of a fault in a worker.

    def is_a_failure(self):
        """An exception of a worker's is raised in the master; all goes on as if nothing was."""
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
        self.is_as_before_if_atomic()
        assert self.since < NOTICE_S

    def is_a_stall(self):
        """A worker that is stopped is told, with its state; and given up when time is over."""
        error = self.raised("WorkerStalled")
        assert self.setting.struck in error.ranks
        assert "stopped" in error.stacks[self.setting.struck]
        assert "stopped" in error.message
        assert self.closed
        self.is_told("stopped")
        self.is_as_before_if_atomic()
        assert self.since < HASTY_S + NOTICE_S

    def is_late(self):
        """A worker that is late is told, with its stack; the result is right."""
        assert self.error is None, self.error
        assert self.right
        assert self.again
        self.is_told("in sleep")
        assert self.found <= {"same", "after"}
        assert self.since < SLOW_S + NOTICE_S

    # What is to come of a fault in the master.

    def is_the_masters_own(self):
        """What is raised in the master arrives as it is; all goes on as if nothing was."""
        self.raised(self.kind_of_error())
        self.is_undone()

    def is_an_interrupt(self):
        """Ctrl-C: KeyboardInterrupt; an order has happened on all ranks or on none. Where it is not
        atomic, what may differ is refused."""
        self.raised("KeyboardInterrupt")
        if self.state.name == "closing":
            assert self.closed
            assert self.since < CLOSE_S
            return
        assert not self.closed, "it had time to listen"
        assert self.again
        refused = not self.setting.atomic and self.next_call == "ReplicasDiffer"
        whole = self.found <= {"same", "before"} or self.found <= {"same", "after"}
        assert refused or whole, self.found
        assert self.since < NOTICE_S + (0 if self.state.interrupts else SHORT_S)

    def is_an_end(self):
        """Ctrl-C while a worker does not listen, or ends because of it: it is a KeyboardInterrupt,
        also for a program that handles the death of workers; and the runtime is closed."""
        error = self.raised("KeyboardInterrupt")
        assert self.fault.name != "ctrl-c-fatal" or error.cause == "WorkerDied"
        assert self.closed
        self.is_as_before_if_atomic()
        assert self.since < (DEAF_S if self.fault.argument == 1 else CLOSE_S)

    # Parts of the above.

    def raised(self, name):
        assert self.error is not None, f"nothing was raised, expected {name}"
        assert self.error.type == name, f"expected {name}, got {self.error.where}"
        return self.error

    def kind_of_error(self):
        return "Injected" if self.fault.deed == "fail" else "MemoryError"

    def is_undone(self):
        assert not self.closed
        if self.setting.atomic:
            assert self.found <= {"same", "before"}
        else:
            # The next call uses what this one updates.
            alike = self.state.name in {"gather", "distributing", "all_reduce", "broadcast"}
            assert self.next_call == (alike or "ReplicasDiffer")
        assert self.again
        assert self.since < NOTICE_S

    def is_as_before_if_atomic(self):
        assert not self.setting.atomic or self.found <= {"same", "before"}, self.found

    def is_told(self, text):
        late = f"rank {self.setting.struck} has been"
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
