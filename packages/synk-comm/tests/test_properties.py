"""Random programs of collectives, in lock-step on several ranks, against NumPy.

A program is a list of steps; what each rank brings, and what it must get, follow from the step
alone. Programs run twice over every backend: results must be what NumPy says, and the same bits
on all ranks, in both runs and over all backends.

Failures replay: hypothesis is derandomized, and prints the program. With ``SYNK_TESTS=all`` each
run tries others, and more, and shrinks those that fail.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from synk_comm import PeerDeclined, create_group, join, local_group
from synk_comm.testing import in_threads
from synk_comm.testing._checks_tools import bits, data, folded, layouts, outs_like

BACKENDS = ["local", "shm", "zmq"]
LONGER = os.environ.get("SYNK_TESTS") == "all"
EXAMPLES = 80 if LONGER else 15
# Shrinking takes minutes: it is for those who ask for more examples.
quick = settings(
    deadline=None,
    derandomize=not LONGER,
    print_blob=True,
    phases=list(Phase) if LONGER else [Phase.explicit, Phase.generate],
)
KINDS = [
    "barrier",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "scatter",
    "gather",
    "all_gather",
    "all_to_all",
    "ring",
    "objects",
    "in_place",
    "split",
    "decline",
]
NUMBERS = ["f4", "f8", "f2", "i4", "u1", "c8", ">f4", ">i2", "i8"]
OTHERS = ["?", "U3", "S2", "M8[s]", "V5", "i2,f8"]
SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (2, 3),
    (4, 0),
    (5, 1, 2),
    (1000,),
    (70_001,),
    (131_073,),
    (2, 90_001),
]


class Step(NamedTuple):
    """One collective, as all ranks call it; ``times`` in a row."""

    kind: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    op: str
    root: int
    weights: tuple[float, ...] | None
    quiet: tuple[bool, ...]
    listed: bool
    uneven: bool
    out: int
    layout: int
    seed: int
    times: int


@st.composite
def steps(draw, size):
    kind = draw(st.sampled_from(KINDS))
    reducing = kind in ("all_reduce", "reduce", "reduce_scatter", "in_place", "split")
    dtype = draw(st.sampled_from(NUMBERS if reducing else NUMBERS + OTHERS))
    floating = np.dtype(dtype).kind in "fc"
    op = draw(st.sampled_from(["sum", "avg", "prod", "min", "max"]))
    if op == "avg" and not floating:
        op = "sum"
    listed = kind in ("all_reduce", "reduce", "broadcast", "gather", "all_gather")
    listed = listed and draw(st.booleans())
    count = draw(st.integers(1, 4)) if listed else 1
    possible = SHAPES if dtype in NUMBERS else SHAPES[:8]
    shapes = tuple(draw(st.sampled_from(possible)) for _ in range(count))
    quiet = [False] * size
    if kind in ("all_reduce", "reduce", "gather", "all_gather") and draw(st.booleans()):
        quiet = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        quiet[draw(st.integers(0, size - 1))] = False
    weights = None
    if op == "avg" and kind != "split" and draw(st.booleans()):
        some = st.sampled_from([0.0, 0.5, 1.0, 3.0] if kind == "all_reduce" else [0.5, 1.0, 7.0])
        weights = tuple(draw(st.lists(some, min_size=size, max_size=size)))
        if not any(w for w, nothing in zip(weights, quiet) if not nothing):
            weights = (1.0,) * size
    return Step(
        kind,
        dtype,
        shapes,
        op,
        draw(st.integers(0, size - 1)),
        weights,
        tuple(quiet),
        listed,
        draw(st.booleans()),
        draw(st.integers(0, 5)),
        draw(st.integers(0, 6)),
        draw(st.integers(0, 9)),
        draw(st.sampled_from([1, 1, 1, 2, 3])),
    )


@st.composite
def programs(draw):
    size = draw(st.integers(2, 4))
    return size, draw(
        st.lists(steps(size), min_size=1, max_size=draw(st.sampled_from([3, 12, 30])))
    )


# -- what a step means ----------------------------------------------------------------------


def values(step, rank, which=0):
    """Return what a rank brings: a new array, in C order."""
    shape = step.shapes[which]
    if step.uneven and shape and step.kind in ("gather", "all_gather"):
        shape = (shape[0] + rank % 3, *shape[1:])
    return data(100 * step.seed + 10 * which + rank, shape, step.dtype)


def dealt(step, rank, size):
    """Return the list of arrays that a rank deals out."""
    shape = step.shapes[0]
    shapes = [
        (shape[0] + dest % 3, *shape[1:]) if step.uneven and shape else shape
        for dest in range(size)
    ]
    return [
        data(100 * step.seed + 10 * dest + rank, s, step.dtype) for dest, s in enumerate(shapes)
    ]


def laid_out(step, x):
    ways = list(layouts(x))
    return ways[step.layout % len(ways)]


def place(step, like):
    """Return an ``out``, or None."""
    if step.out < 2:
        return None
    ways = list(outs_like(like))
    return ways[step.out % len(ways)]


def average(parts, weights):
    """Return the weighted average, which is right to rounding, and its tolerance."""
    wide = [part.astype("c16") for part in parts]
    exact = sum(w * part for w, part in zip(weights, wide)) / sum(weights)
    return exact, 16 * float(np.finfo(parts[0].dtype).eps)


def reduced(step, size, ranks=None):
    """Return what reducing each array of the step gives."""
    ranks = [r for r in ranks or range(size) if not step.quiet[r]]
    if step.weights is not None:
        ranks = [r for r in ranks if step.weights[r]]
    results = []
    for which in range(len(step.shapes)):
        parts = [values(step, r, which) for r in ranks]
        if step.weights is None or len({step.weights[r] for r in ranks}) == 1:
            results.append(folded(parts, step.op))
        else:
            results.append(average(parts, [step.weights[r] for r in ranks]))
    return results


def expected(step, rank, size):
    """Return the list of arrays that a rank gets; a pair stands for a value and its tolerance."""
    ranks = range(size)
    kind, root = step.kind, step.root
    if kind in ("all_reduce", "in_place") or (kind == "reduce" and rank == root):
        return reduced(step, size)
    if kind == "split":
        return reduced(step, size, [r for r in ranks if r % 2 == rank % 2])
    if kind == "reduce_scatter":
        lists = [dealt(step, r, size) for r in ranks]
        mine = [x[rank] for x in lists]
        if step.weights is None or len(set(step.weights)) == 1:
            return [folded(mine, step.op)]
        return [average(mine, step.weights)]
    if kind == "broadcast":
        return [values(step, root, which) for which in range(len(step.shapes))]
    if kind == "scatter":
        return [dealt(step, root, size)[rank]]
    if kind == "all_gather" or (kind == "gather" and rank == root):
        return [
            None if step.quiet[r] else values(step, r, which)
            for which in range(len(step.shapes))
            for r in ranks
        ]
    if kind == "all_to_all":
        return [dealt(step, r, size)[rank] for r in ranks]
    if kind == "ring":
        return [values(step, (rank - 1) % size)]
    return []


def perform(step, comm):  # noqa: C901 - one branch for each kind
    """Do a step on one rank; return the list of arrays that it got."""
    size, rank, kind, root = comm.size, comm.rank, step.kind, step.root
    mine = [laid_out(step, values(step, rank, which)) for which in range(len(step.shapes))]
    given: Any = None if step.quiet[rank] else (mine if step.listed else mine[0])
    weight = None if step.weights is None else step.weights[rank]
    if kind == "barrier":
        comm.barrier()
    elif kind in ("all_reduce", "reduce"):
        like = [values(step, rank, which) for which in range(len(step.shapes))]
        out: Any = [place(step, x) for x in like]
        out = None if out[0] is None else out if step.listed else out[0]
        if step.out == 5 and given is not None and step.layout == 0:
            out = given
        if kind == "all_reduce":
            got = comm.all_reduce(given, step.op, weight=weight, out=out)
        else:
            got = comm.reduce(given, step.op, root, weight=weight, out=out)
            if rank != root:
                assert got is None
                return []
        assert out is None or step.listed or got is out
        return list(got) if step.listed else [got]
    elif kind == "reduce_scatter":
        xs: Any = [laid_out(step, x) for x in dealt(step, rank, size)]
        if not step.uneven and step.shapes[0]:
            xs = np.concatenate(xs, dtype=step.dtype)  # by itself it makes native byte order
        return [
            comm.reduce_scatter(
                xs, step.op, weight=weight, out=place(step, dealt(step, rank, size)[rank])
            )
        ]
    elif kind == "broadcast":
        xs = [np.zeros_like(values(step, rank, w)) for w in range(len(mine))]
        if step.out % 2:
            xs = [np.asfortranarray(x) if x.ndim else x for x in xs]
        xs = mine if rank == root else xs
        comm.broadcast(xs if step.listed else xs[0], root)
        return xs
    elif kind == "scatter":
        deal = [laid_out(step, x) for x in dealt(step, root, size)] if rank == root else None
        return [comm.scatter(deal, root, out=place(step, dealt(step, root, size)[rank]))]
    elif kind in ("gather", "all_gather"):
        out = None
        if not step.listed and step.out % 3 == 2:
            out = [None if step.quiet[r] else np.zeros_like(values(step, r)) for r in range(size)]
            if not step.uneven and not any(step.quiet) and step.layout % 2:
                out = np.stack(out).astype(step.dtype)
        if kind == "gather":
            got = comm.gather(given, root, out=out)
            if rank != root:
                assert got is None
                return []
        else:
            got = comm.all_gather(given, out=out)
        if isinstance(got, np.ndarray):
            got = [got[r, ...] for r in range(size)]
        return [x for arrays in got for x in arrays] if step.listed else list(got)
    elif kind == "all_to_all":
        return list(comm.all_to_all([laid_out(step, x) for x in dealt(step, rank, size)]))
    elif kind == "ring":
        dest, source = (rank + 1) % size, (rank - 1) % size
        if rank:
            comm.send(mine[0], dest, tag=step.seed)
        got = comm.recv(source, tag=step.seed, out=place(step, values(step, source)))
        if not rank:
            comm.send(mine[0], dest, tag=step.seed)
        return [got]
    elif kind == "objects":
        assert comm.all_gather_object((step.seed, rank)) == [(step.seed, r) for r in range(size)]
        assert comm.broadcast_object(rank, root) == root
        assert comm.gather_object("x" * rank, root) == (
            ["x" * r for r in range(size)] if rank == root else None
        )
        assert comm.all_to_all_object([(rank, r) for r in range(size)]) == [
            (r, rank) for r in range(size)
        ]
    elif kind == "in_place":
        x = comm.empty(step.shapes[0], step.dtype)
        x[...] = mine[0]
        assert comm.all_reduce(x, step.op, weight=weight, out=x) is x
        return [x.copy()]
    elif kind == "split":
        part = comm.split(rank % 2)
        with part:
            return [part.all_reduce(mine[0], step.op)]
    elif rank == root:
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

    def get(self, backend, size):
        if (backend, size) not in self._made:
            self._made[backend, size] = make(backend, size)
        return self._made[backend, size]

    def drop(self):
        for comms in self._made.values():
            for comm in comms:
                comm.close()
        self._made.clear()


def make(backend, size):
    if backend == "local":
        return local_group(size, timeout_s=5)
    with create_group(size, backend) as group:
        tickets = [group.ticket(rank) for rank in range(size)]
        return in_threads(local_group(size), lambda seat: join(tickets[seat.rank], timeout_s=5))


@pytest.fixture(scope="module")
def groups():
    made = Groups()
    yield made
    made.drop()


@pytest.fixture(scope="module", params=["shm", "zmq"])
def other(request):
    return request.param


def run(comms, program):
    """Return, for each rank, what it got in each step."""
    errors = []

    def on_rank(comm):
        number = None
        try:
            return [
                [perform(step, comm) for _ in range(step.times)]
                for number, step in enumerate(program)
            ]
        except Exception as exc:
            errors.append((comm.rank, exc))
            comm.abort(f"{type(exc).__name__}: {exc} in step {number}")
            raise

    try:
        return in_threads(comms, on_rank)
    except Exception:
        if errors:
            raise errors[0][1]  # noqa: B904 - the others only followed
        raise


def check(results, program, size):
    """Raise unless every rank got in every step what NumPy says."""
    for number, step in enumerate(program):
        for rank in range(size):
            wanted = expected(step, rank, size)
            for got in results[rank][number]:
                assert len(got) == len(wanted), (number, rank)
                for array, value in zip(got, wanted):
                    if value is None:
                        assert array is None, (number, rank)
                    elif isinstance(value, tuple):
                        exact, tolerance = value
                        np.testing.assert_allclose(array, exact, tolerance, tolerance)
                    else:
                        if isinstance(array, np.generic):
                            value = np.asarray(value[()])
                        assert array.dtype == value.dtype, (number, rank, step)
                        assert array.shape == value.shape, (number, rank, step)
                        same = bits(np.ascontiguousarray(array)) == bits(value)
                        assert same, f"step {number}, rank {rank}: {array} is not {value}"


def fingerprint(results):
    """Return the bits of everything that all ranks got."""
    return [
        [[None if x is None else bits(np.ascontiguousarray(x)) for x in got] for got in turns]
        for of_rank in results
        for turns in of_rank
    ]


FOREIGN = Step(
    kind="reduce_scatter",
    dtype=">f4",
    shapes=((3,),),
    op="sum",
    root=0,
    weights=None,
    quiet=(False, False),
    listed=False,
    uneven=False,
    out=0,
    layout=0,
    seed=1,
    times=3,
)


# The root has nothing to add, and says where the result is to go; more than once.
QUIET = FOREIGN._replace(kind="reduce", dtype="<f4", root=1, quiet=(False, True), out=2)


@settings(quick, max_examples=EXAMPLES)
@example((2, [QUIET, QUIET._replace(op="max", out=1)]))
@example((2, [FOREIGN, FOREIGN._replace(out=2), FOREIGN._replace(dtype=">i2", op="max")]))
@given(programs())
def test_programs_are_what_numpy_says(groups, other, drawn):
    size, program = drawn
    seen = []
    try:
        for backend in ("local", other, other):
            results = run(groups.get(backend, size), program)
            check(results, program, size)
            seen.append(fingerprint(results))
    except BaseException:
        groups.drop()
        raise
    assert seen[0] == seen[1] == seen[2]
    weighted = [n for n, step in enumerate(program) if step.kind in ("all_reduce", "in_place")]
    for number in weighted:
        got = [[bits(np.ascontiguousarray(x)) for x in of_rank[number][0]] for of_rank in results]
        assert all(theirs == got[0] for theirs in got)


@settings(quick, max_examples=EXAMPLES // 5)
@given(
    st.integers(2, 4),
    st.sampled_from(["f4", "f8", "f2", "c8"]),
    st.sampled_from(["sum", "avg", "prod"]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 300_000)), min_size=1, max_size=5),
)
def test_an_element_does_not_feel_how_long_its_array_is(
    groups, other, size, dtype, op, weighted, cuts
):
    rng = np.random.default_rng(size)
    whole = [
        (rng.standard_normal(400_000) * 10.0 ** rng.integers(-2, 2)).astype(dtype)
        for _ in range(size)
    ]

    def reduce(comm):
        weight = 0.3 + comm.rank if weighted and op == "avg" else None
        x = whole[comm.rank]
        all_of_it = comm.all_reduce(x, op, weight=weight)
        for start, length in cuts:
            for _ in range(2):
                piece = comm.all_reduce(x[start : start + length], op, weight=weight)
                assert piece.tobytes() == all_of_it[start : start + length].tobytes()
        return all_of_it.tobytes()

    try:
        results = [in_threads(groups.get(backend, size), reduce) for backend in ("local", other)]
    except BaseException:
        groups.drop()
        raise
    assert len({bits for of_backend in results for bits in of_backend}) == 1
