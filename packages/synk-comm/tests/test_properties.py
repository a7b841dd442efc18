"""Random programs of collectives, in lock-step on several ranks, against NumPy.

Programs run twice over shared memory, and once over sockets: all give the same bits.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from contract.checks import in_all
from contract.steps import LISTED, MOVES, REDUCTIONS, Step, check
from contract.tools import bits
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from synk_comm.testing import thread_group

LONGER = os.environ.get("SYNK_TESTS") == "all"
EXAMPLES = 80 if LONGER else 12
# Shrinking takes minutes: it is for runs of more examples.
quick = settings(
    deadline=None,
    derandomize=not LONGER,
    print_blob=True,
    phases=list(Phase) if LONGER else [Phase.explicit, Phase.generate],
)
NUMBERS = ["f4", "f8", "f2", "i4", "u1", "c8", ">f4", ">i2", "i8"]
OTHERS = ["?", "U3", "S2", "M8[s]", "V5", "i2,f8"]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (4, 0), (5, 1, 2), (1000,)]
LONG_SHAPES = [(70_001,), (131_073,), (2, 90_001)]


@st.composite
def steps(draw, size):
    kind = draw(st.sampled_from([*REDUCTIONS, *MOVES, "decline"]))
    dtype = draw(st.sampled_from(NUMBERS if kind in REDUCTIONS else NUMBERS + OTHERS))
    floating = np.dtype(dtype).kind in "fc"
    op = draw(st.sampled_from(["sum", "prod", "min", "max", *(["avg"] if floating else [])]))
    count = draw(st.integers(1, 4)) if kind in LISTED and draw(st.booleans()) else 1
    possible = SHAPES + LONG_SHAPES if dtype in NUMBERS else SHAPES
    shapes = tuple(draw(st.sampled_from(possible)) for _ in range(count))
    quiet = [False] * size
    if kind in LISTED and kind != "broadcast" and draw(st.booleans()):
        quiet = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        quiet[draw(st.integers(0, size - 1))] = False
    weights = None
    if op == "avg" and kind != "split" and draw(st.booleans()):
        some = st.sampled_from([0.0, 0.5, 1.0, 3.0] if kind == "all_reduce" else [0.5, 1.0, 7.0])
        weights = tuple(draw(st.lists(some, min_size=size, max_size=size)))
        if not any(w for w, nothing in zip(weights, quiet) if not nothing):
            weights = (1.0,) * size
    root, times = draw(st.integers(0, size - 1)), draw(st.sampled_from([1, 1, 1, 2, 3]))
    numbers = [draw(st.integers(0, n)) for n in (5, 6, 9)]
    return Step(kind, dtype, shapes, op, root, weights, tuple(quiet), *numbers, times)


@st.composite
def programs(draw):
    size = draw(st.integers(2, 3 + LONGER))
    most = draw(st.sampled_from([3, 12, 30]))
    return size, draw(st.lists(steps(size), min_size=1, max_size=most))


class Groups:
    """Groups that live as long as nothing fails: what one program left is there for the next."""

    def __init__(self):
        self._made = {}

    def run(self, backend, size, function):
        """Return what a function returns on each rank; raise what failed first."""
        if (backend, size) not in self._made:
            self._made[backend, size] = thread_group(size, backend, timeout_s=20)
        try:
            return in_all(self._made[backend, size], function)
        except BaseException:
            self.drop()
            raise

    def drop(self):
        for comms in self._made.values():
            for comm in comms:
                comm.close()
        self._made.clear()


@pytest.fixture(scope="module")
def groups():
    made = Groups()
    yield made
    made.drop()


FOREIGN = Step("reduce_scatter", ">f4")
QUIET = Step("reduce", root=1, quiet=(False, True), out=2)


@settings(quick, max_examples=EXAMPLES)
@example((2, [QUIET, QUIET._replace(op="max", out=1)]))
@example((2, [Step("split", shapes=((),), out=2)]))
@example((2, [FOREIGN, FOREIGN._replace(out=2), FOREIGN._replace(dtype=">i2", op="max")]))
@given(programs())
def test_programs_give_numpys_results(groups, drawn):
    size, program = drawn

    def run(comm):
        turns = [check(comm, step) for step in program for _ in range(step.times)]
        return [[x if x is None else bits(np.ascontiguousarray(x)) for x in got] for got in turns]

    seen = [groups.run(backend, size, run) for backend in ("shm", "zmq", "shm")]
    assert seen[0] == seen[1] == seen[2]
    kinds = [step.kind for step in program for _ in range(step.times)]
    for kind, *results in zip(kinds, *seen[0]):
        assert kind != "all_reduce" or all(theirs == results[0] for theirs in results)
