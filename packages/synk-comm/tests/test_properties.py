"""Random programs of collectives, in lock-step on several ranks, against NumPy.

A program is a list of steps; what each rank brings, and what it must get, follow from the step
alone. Programs run twice over shared memory, and once over sockets: results must be what NumPy
says, and the same bits on all ranks, in all runs.

Failures replay: hypothesis is derandomized, and prints the program. With ``SYNK_TESTS=all`` each
run tries others, and more, and shrinks those that fail.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest
from contract.tools import bits, data, folded, layouts, outs_like
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from synk_comm import PeerDeclined
from synk_comm.testing import in_threads, thread_group

LONGER = os.environ.get("SYNK_TESTS") == "all"
EXAMPLES = 80 if LONGER else 12
# Shrinking takes minutes: it is for those who ask for more examples.
quick = settings(
    deadline=None,
    derandomize=not LONGER,
    print_blob=True,
    phases=list(Phase) if LONGER else [Phase.explicit, Phase.generate],
)
REDUCTIONS = ["all_reduce", "reduce", "reduce_scatter", "split"]
MOVES = ["broadcast", "scatter", "gather", "all_gather", "all_to_all", "ring"]
LISTED = ["all_reduce", "reduce", "broadcast", "gather", "all_gather"]
NUMBERS = ["f4", "f8", "f2", "i4", "u1", "c8", ">f4", ">i2", "i8"]
OTHERS = ["?", "U3", "S2", "M8[s]", "V5", "i2,f8"]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (4, 0), (5, 1, 2), (1000,)]
LONG_SHAPES = [(70_001,), (131_073,), (2, 90_001)]


class Step(NamedTuple):
    """One collective, as all ranks call it; ``times`` in a row. Of several ``shapes`` a list."""

    kind: str
    dtype: str = "f4"
    shapes: tuple[tuple[int, ...], ...] = ((3,),)
    op: str = "sum"
    root: int = 0
    weights: tuple[float, ...] | None = None
    quiet: tuple[bool, ...] = (False,) * 4
    out: int = 0
    layout: int = 0
    seed: int = 1
    times: int = 3


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


# -- what a step means ----------------------------------------------------------------------


def values(step, rank, which=0):
    """Return what a rank brings: a new array, in C order; to gather, of a length of its own."""
    shape = step.shapes[which]
    if step.out % 2 and shape and step.kind in ("gather", "all_gather"):
        shape = (shape[0] + rank % 3, *shape[1:])
    return data(100 * step.seed + 10 * which + rank, shape, step.dtype)


def dealt(step, rank, size):
    """Return the list of arrays that a rank deals out."""
    shape = step.shapes[0]
    shapes = [(shape[0] + dest % 3, *shape[1:]) if shape else shape for dest in range(size)]
    return [
        data(100 * step.seed + 10 * dest + rank, s, step.dtype) for dest, s in enumerate(shapes)
    ]


def laid_out(step, x):
    ways = list(layouts(x))
    return ways[step.layout % len(ways)]


def place(step, like):
    """Return an ``out``, or None."""
    ways = list(outs_like(like))
    return None if step.out < 2 else ways[step.out % len(ways)]


def reduced(step, parts, ranks):
    """Return what NumPy says; of a weighted average a pair, with its tolerance."""
    weights = [1.0 if step.weights is None else step.weights[r] for r in ranks]
    parts = [part for part, weight in zip(parts, weights) if weight]
    weights = [weight for weight in weights if weight]
    if len(set(weights)) == 1:
        return folded(parts, step.op)
    exact = sum(w * part.astype("c16") for w, part in zip(weights, parts)) / sum(weights)
    return exact, 16 * float(np.finfo(parts[0].dtype).eps)


def expected(step, rank, size):
    """Return the list of arrays that a rank gets; a pair stands for a value and its tolerance."""
    kind, root, ranks, whiches = step.kind, step.root, range(size), range(len(step.shapes))
    givers = [r for r in ranks if not step.quiet[r]]
    if kind in ("reduce", "gather") and rank != root:
        return []
    if kind in ("all_reduce", "reduce"):
        return [reduced(step, [values(step, r, w) for r in givers], givers) for w in whiches]
    if kind == "split":
        return [folded([values(step, r) for r in ranks if r % 2 == rank % 2], step.op)]
    if kind == "reduce_scatter":
        return [reduced(step, [dealt(step, r, size)[rank] for r in ranks], ranks)]
    if kind == "broadcast":
        return [values(step, root, w) for w in whiches]
    if kind == "scatter":
        return [dealt(step, root, size)[rank]]
    if kind in ("gather", "all_gather"):
        return [values(step, r, w) if r in givers else None for w in whiches for r in ranks]
    if kind == "all_to_all":
        return [dealt(step, r, size)[rank] for r in ranks]
    return [values(step, (rank - 1) % size)] if kind == "ring" else []


def perform(step, comm):
    """Do a step on one rank; return the list of arrays that it got."""
    size, rank, kind, root = comm.size, comm.rank, step.kind, step.root
    plain = [values(step, rank, which) for which in range(len(step.shapes))]
    mine = [laid_out(step, x) for x in plain]
    listed = len(mine) > 1
    given = None if step.quiet[rank] else mine if listed else mine[0]
    how = {} if step.weights is None else {"weight": step.weights[rank]}
    if kind in ("all_reduce", "reduce"):
        outs = [place(step, x) for x in plain]
        out = None if outs[0] is None else outs if listed else outs[0]
        to = () if kind == "all_reduce" else (root,)
        got = getattr(comm, kind)(given, step.op, *to, out=out, **how)
        if kind == "reduce" and rank != root:
            assert got is None
            return []
        assert out is None or listed or got is out
        return list(got) if listed else [got]
    if kind == "broadcast":
        xs = mine if rank == root else [np.zeros_like(x, order="F") for x in plain]
        comm.broadcast(xs if listed else xs[0], root)
        return xs
    if kind in ("gather", "all_gather"):
        out = None
        if not listed and step.out > 3:
            out = [None if step.quiet[r] else np.zeros_like(values(step, r)) for r in range(size)]
        got = getattr(comm, kind)(given, *([root] if kind == "gather" else []), out=out)
        if kind == "gather" and rank != root:
            assert got is None
            return []
        return [x for arrays in got for x in arrays] if listed else list(got)
    if kind in ("reduce_scatter", "all_to_all", "scatter"):
        xs = [laid_out(step, x) for x in dealt(step, root if kind == "scatter" else rank, size)]
        if kind == "all_to_all":
            return comm.all_to_all(xs)
        if kind == "scatter":
            out = place(step, dealt(step, root, size)[rank])
            return [comm.scatter(xs if rank == root else None, root, out=out)]
        return [comm.reduce_scatter(xs, step.op, out=place(step, xs[rank].copy()), **how)]
    if kind == "ring":
        gone = comm.isend(mine[0], (rank + 1) % size, tag=step.seed)
        source = (rank - 1) % size
        got = comm.recv(source, tag=step.seed, out=place(step, values(step, source)))
        gone.wait()
        return [got]
    if kind == "split":
        with comm.split(rank % 2) as part:
            return [part.all_reduce(mine[0], step.op)]
    if rank == root:
        assert comm.decline("not now") == {}
    else:
        call = [comm.barrier, lambda: comm.all_reduce(np.ones(3)), lambda: comm.all_gather(mine[0])]
        with pytest.raises(PeerDeclined, match="not now"):
            call[step.seed % 3]()
    return []


# -- running it -------------------------------------------------------------------------------


class Groups:
    """Groups that live as long as nothing fails: what one program left is there for the next."""

    def __init__(self):
        self._made = {}

    def run(self, backend, size, function):
        """Return what a function returns on each rank; raise what failed first."""
        if (backend, size) not in self._made:
            self._made[backend, size] = thread_group(size, backend, timeout_s=20)
        errors = []

        def on_rank(comm):
            try:
                return function(comm)
            except Exception as exc:
                errors.append(exc)
                comm.abort(f"{type(exc).__name__}: {exc}")
                raise

        try:
            return in_threads(self._made[backend, size], on_rank)
        except BaseException as exc:
            self.drop()
            raise (errors or [exc])[0]  # noqa: B904 - the others only followed

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


def check(got, wanted, where):
    """Raise unless a rank got in a step what NumPy says."""
    assert len(got) == len(wanted), where
    for array, value in zip(got, wanted):
        if value is None:
            assert array is None, where
        elif isinstance(value, tuple):
            np.testing.assert_allclose(array, value[0], value[1], value[1])
        else:
            value = np.asarray(value[()]) if isinstance(array, np.generic) else value
            assert (array.dtype, array.shape) == (value.dtype, value.shape), where
            same = bits(np.ascontiguousarray(array)) == bits(value)
            assert same, f"{where}: {array} is not {value}"


FOREIGN = Step("reduce_scatter", ">f4")
# The root has nothing to add, and says where the result is to go; more than once.
QUIET = Step("reduce", root=1, quiet=(False, True), out=2)


@settings(quick, max_examples=EXAMPLES)
@example((2, [QUIET, QUIET._replace(op="max", out=1)]))
@example((2, [FOREIGN, FOREIGN._replace(out=2), FOREIGN._replace(dtype=">i2", op="max")]))
@given(programs())
def test_programs_are_what_numpy_says(groups, drawn):
    size, program = drawn
    seen = []
    for backend in ("shm", "zmq", "shm"):
        results = groups.run(
            backend,
            size,
            lambda comm: [[perform(step, comm) for _ in range(step.times)] for step in program],
        )
        for number, step in enumerate(program):
            for rank, of_rank in enumerate(results):
                for got in of_rank[number]:
                    check(got, expected(step, rank, size), (number, rank, step))
        seen.append(
            [
                [
                    [None if x is None else bits(np.ascontiguousarray(x)) for x in got]
                    for got in turns
                ]
                for of_rank in results
                for turns in of_rank
            ]
        )
    assert seen[0] == seen[1] == seen[2]
    for number, step in enumerate(program):
        if step.kind == "all_reduce":
            got = [seen[0][rank * len(program) + number] for rank in range(size)]
            assert all(theirs == got[0] for theirs in got)


@settings(quick, max_examples=max(2, EXAMPLES // 5))
@given(
    st.integers(2, 4),
    st.sampled_from(["f4", "f8", "f2", "c8"]),
    st.sampled_from([("sum", None), ("avg", None), ("avg", 0.3), ("prod", None)]),
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 300_000)), min_size=1, max_size=5),
)
def test_an_element_does_not_feel_how_long_its_array_is(groups, size, dtype, how, cuts):
    rng, (op, weight) = np.random.default_rng(size), how
    scale = [10.0 ** rng.integers(-2, 2) for _ in range(size)]
    whole = [(rng.standard_normal(400_000) * scale[r]).astype(dtype) for r in range(size)]

    def reduce(comm):
        x, own = whole[comm.rank], None if weight is None else weight + comm.rank
        all_of_it = comm.all_reduce(x, op, weight=own)
        for start, length in cuts:
            for _ in range(2):
                piece = comm.all_reduce(x[start : start + length], op, weight=own)
                assert piece.tobytes() == all_of_it[start : start + length].tobytes()
        return all_of_it.tobytes()

    results = [groups.run(backend, size, reduce) for backend in ("shm", "zmq")]
    assert len({bits for of_backend in results for bits in of_backend}) == 1
