"""JAX as the device of ranks, against NumPy; JAX's CPU device in each rank stands for a GPU."""

from __future__ import annotations

import ast
import ctypes
import os
from types import SimpleNamespace

import numpy as np
import pytest
from _features import UNPROVED

from synk_core import Runtime, StartError, WorkerFailed
from synk_core._graph.devices.assignment import choose
from synk_core.exceptions import InputValueError
from synk_testing.engine import IS_THEANO, T, as_op, engine

if IS_THEANO:
    pytest.skip("PyTensor only", allow_module_level=True)
jax = pytest.importorskip("jax")

from synk_pytensor._jax import backend, pending  # noqa: E402 - after the skips
from synk_pytensor._jax.arrays import STAND_INS, Lazy  # noqa: E402
from synk_pytensor._jax.reductions import NcclGroup  # noqa: E402
from synk_pytensor._jax.stand_in import HostGroup  # noqa: E402

GPUS = int(os.environ.get("SYNK_JAX_GPUS") or 0)
"""In place of stand-ins, by hand."""
if GPUS:
    # Some tests start programs on the GPUs that this one computes on.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

SIZE = GPUS or 3
on_stand_ins = pytest.mark.skipif(GPUS > 0, reason="of stand-ins")
x = T.dmatrix("x")
rows = np.random.RandomState(0).uniform(1, 2, (7, 4))
shares = np.array_split(rows, SIZE)


@pytest.fixture(scope="module")
def ranks():
    with pytest.MonkeyPatch.context() as patch:
        if not GPUS:
            patch.setenv(STAND_INS, str(SIZE))
        with Runtime(SIZE, use_gpu=True) as opened:
            assert backend.mode() == "JAX"
            yield opened
        assert backend.mode() is None


def shared(value, name="v"):
    return engine.shared(np.array(value, dtype=np.asarray(value).dtype), name)


def held(variable):
    """Return the master's value itself."""
    return variable.container.storage[0]


def on_ranks(runtime, variable):
    return [runtime.collectives.get_value(rank, variable) for rank in range(SIZE)]


@as_op([T.dvector], [T.dvector])
def picky(values):
    if values.max() > 100:
        raise ValueError("too large")
    return values


@pytest.mark.parametrize(
    "dtype",
    ["float32", *(pytest.param(d, marks=pytest.mark.nightly) for d in ("float64", "int64"))],
)
def test_functions_compute_on_the_device_and_give_arrays_of_numpy(ranks, dtype):
    a = T.matrix("a", dtype=dtype)
    values = rows.astype(dtype) + (1 << 40 if dtype == "int64" else 0)
    w = shared(np.arange(4).astype(dtype), "w")
    outputs = [(a.sum(), "sum"), (a.max(axis=0), "max"), (a + w, "gather"), (a.shape[0], None)]
    if dtype != "int64":
        outputs.append(T.exp(a / 10).mean(axis=0))
    f = ranks.function([a], outputs, updates=[(w, w + a.sum(axis=0), "sum")], **UNPROVED)
    exact = {"rtol": 1e-6 if dtype == "float32" else 1e-12}
    for slices in (1, 2):
        before = on_ranks(ranks, w)
        got = f(values, num_slices=slices) if slices == 1 else f(values)
        assert all(type(value) is np.ndarray for value in got[:3])
        got[1][0] = 0  # the user's own
        np.testing.assert_allclose(got[0], values.sum(), **exact)
        np.testing.assert_allclose(got[1][1:], values.max(axis=0)[1:])
        np.testing.assert_allclose(
            got[2],
            np.concatenate([share + b for share, b in zip(np.array_split(values, SIZE), before)]),
            **exact,
        )
        assert got[3] == len(shares[0])
        if dtype != "int64":
            np.testing.assert_allclose(got[4], np.exp(values / 10).mean(axis=0), **exact)
        assert [value.dtype for value in got[:3]] == [dtype] * 3
        for b, share, now in zip(before, np.array_split(values, SIZE), on_ranks(ranks, w)):
            np.testing.assert_allclose(now, b + share.sum(axis=0), **exact)
    assert isinstance(held(w), jax.Array)
    assert held(w).dtype == dtype
    for value in (w.get_value(), w.get_value(borrow=True)):
        assert type(value) is np.ndarray
        assert value.flags.writeable


def test_slices_selections_and_ranks_without_rows(ranks):
    s, n = shared(rows, "s"), shared(0.0, "n")
    f = ranks.function(
        [],
        [(s.sum(axis=0), "sum"), (s, "gather")],
        sliceable_shareds=[s],
        updates=[(n, n + s.sum(), "sum")],
    )
    picks = [slice(1, 4), slice(0, 2), slice(5, 7)], [[0, 2], [6], [3, 3, 1]]
    picks = [chosen[:SIZE] for chosen in picks]
    for chosen in picks:
        for num_slices in (1, 2):
            n.set_value(0.0)
            ranks.collectives.broadcast(n)
            taken = [rows[pick] for pick in chosen]
            total, gathered = f(batch_s=chosen, num_slices=num_slices)
            np.testing.assert_allclose(gathered, np.concatenate(taken))
            np.testing.assert_allclose(total, np.concatenate(taken).sum(axis=0))
            np.testing.assert_allclose(on_ranks(ranks, n), [t.sum() for t in taken])
    v = shared(0.0)
    g = ranks.function([x], [x.mean(axis=0), x.max()], updates=[(v, v + x.sum())])
    for count in (0, 1, 2):
        v.set_value(0.0)
        ranks.collectives.broadcast(v)
        some = rows[:count]
        if count:
            np.testing.assert_allclose(g(some)[0], some.mean(axis=0))
        ranks.step(g.delayed(rows), ranks.delayed.all_reduce(v, op="sum"), g.delayed(rows[:1]))
        sums = [share.sum() for share in shares]
        more = [rows[:1].sum(), 0, 0][:SIZE]
        before = [some[r : r + 1].sum() for r in range(SIZE)]
        np.testing.assert_allclose(on_ranks(ranks, v), sum(sums) + sum(before) + np.array(more))


def test_values_may_lie_anywhere(ranks):
    """A rank that has got a value from the host reduces it with those on devices; functions of any
    mode use the same variables, those of the user, too."""
    v, w = shared(np.zeros(4)), shared(np.zeros(4), "w")
    f = ranks.function([x], [], updates=[(v, x.sum(axis=0))], name="f")
    for op in ("sum", "max", "avg"):
        f(rows)
        ranks.collectives.set_value(1, v, np.full(4, -5.0))
        ranks.collectives.all_reduce([v, w], op=op)
        values = [share.sum(axis=0) for share in shares]
        values[1] = np.full(4, -5.0)
        wanted = {"sum": np.sum, "max": np.max, "avg": np.mean}[op](values, axis=0)
        np.testing.assert_allclose(on_ranks(ranks, v), [wanted] * SIZE)
    value = v.get_value()
    for mode in ("CVM", "NUMBA", "JAX"):
        double = ranks.function([], [v.sum()], updates=[(v, v * 2)], mode=mode)
        plain = engine.function([x], x + v, mode=mode)
        own = engine.function([], [], updates=[(w, w + v)], mode=mode)
        device = held(v)
        np.testing.assert_allclose(plain(rows), rows + value)
        assert held(v) is device
        np.testing.assert_allclose(double()[0], value.sum())
        value = value * 2
        own()
        np.testing.assert_allclose(on_ranks(ranks, v), [value] * SIZE)
    np.testing.assert_allclose(w.get_value(), 7 / 4 * value)
    v.set_value(rows[0])
    np.testing.assert_array_equal(v.get_value(), rows[0])
    v.set_value(jax.numpy.ones(4), borrow=True)
    assert isinstance(held(v), jax.Array)
    v.set_value(jax.numpy.ones(4, "float32"))  # of another dtype: as NumPy's
    assert v.get_value().dtype == "float64"


def training(runtime):
    w, g, n = shared(np.ones(4), "w"), shared(np.zeros(4), "g"), shared(np.int64(0), "n")
    loss = (T.dot(x, w) ** 2).mean()
    news = [(w, w - 0.01 * g), (n, n + 1)]
    gradient = runtime.function([x], loss, updates=[(g, T.grad(loss, w))], **UNPROVED)
    update = runtime.function([], [], updates=news, **UNPROVED)
    average = runtime.delayed.all_reduce(g, op="avg", weights=gradient)

    def step(*more, data=rows):
        return runtime.step(gradient.delayed(data), average, update.delayed(), *more)[0]

    return SimpleNamespace(w=w, g=g, n=n, step=step, all=[w, g, n])


def by_hand(w, data=rows):
    loss = ((data @ w) ** 2).mean()
    return loss, w - 0.01 * 2 * data.T @ (data @ w) / len(data)


def test_a_step_is_one_program_and_exact(ranks, monkeypatch):
    made, launched = training(ranks), []
    launch = (NcclGroup if GPUS else HostGroup).launch

    def noted(self, run, leaves):
        launched.append(run)
        return launch(self, run, leaves)

    monkeypatch.setattr(NcclGroup if GPUS else HostGroup, "launch", noted)
    made.step()
    w = by_hand(np.ones(4))[1]
    for count in (7, 7, 7, 5, 5):
        loss, w = by_hand(w, rows[:count])
        launched.clear()
        np.testing.assert_allclose(made.step(data=rows[:count]), loss, rtol=1e-12)
        assert len(launched) == 1
    np.testing.assert_allclose(on_ranks(ranks, made.w), [w] * SIZE, rtol=1e-12)
    assert on_ranks(ranks, made.n) == [6] * SIZE
    kept = len(ranks.orders._rank.device._pending._programs)
    for _ in range(3):
        made.step(data=rows[:5])
    assert len(ranks.orders._rank.device._pending._programs) == kept


@pytest.mark.parametrize(
    "where",
    [
        "a worker",
        *(pytest.param(w, marks=pytest.mark.nightly) for w in ("the master", "a worker's trace")),
    ],
)
def test_a_failure_on_one_rank_is_undone_on_all_without_copies(ranks, where):
    made, v = training(ranks), shared(np.zeros(2))
    rank = 0 if where == "the master" else 1
    if where == "a worker's trace":
        bad = ranks.function([], [(v + shared(np.ones(2), "two")).sum()], name="bad")
        value = np.ones(3)
    else:
        bad = ranks.function([], [picky(v).sum()], name="bad", mode="CVM")
        value = np.full(2, 1000.0)
    made.step()
    made.step(bad.delayed())
    ranks.collectives.set_value(rank, v, value)
    before = [on_ranks(ranks, variable) for variable in made.all]
    objects = list(map(held, made.all))
    for _ in range(2):
        with pytest.raises((WorkerFailed, ValueError, TypeError), match=r"bad"):
            made.step(bad.delayed(), ranks.delayed.all_reduce(made.w))
        assert list(map(id, map(held, made.all))) == list(map(id, objects))
        for variable, values in zip(made.all, before):
            np.testing.assert_array_equal(on_ranks(ranks, variable), values)
    np.testing.assert_allclose(made.step(), by_hand(before[0][0])[0])


def test_reductions_are_compared_before_any_program_runs(ranks):
    made, v = training(ranks), shared(np.zeros(2))
    made.step()
    before = on_ranks(ranks, made.w)
    for value in (np.zeros(3), np.zeros((1, 2))[0][:1]):
        ranks.collectives.set_value(1, v, value)
        with pytest.raises(InputValueError, match=r"rank 1: .*float64"):
            made.step(ranks.delayed.all_reduce(v))
        np.testing.assert_array_equal(on_ranks(ranks, made.w), before)
    v.set_value(np.ones(2))
    ranks.collectives.broadcast(v)
    made.step(ranks.delayed.all_reduce(v, op="prod"))


def test_prefetched_rows_are_those_of_the_call(ranks):
    s = shared(0.0)
    f = ranks.function([x], [(x, "gather")], updates=[(s, x.sum())])
    data = ranks.data(np.arange(40.0).reshape(10, 4))
    batches = [[3, 1, 2, 9], slice(2, 8), [0]]
    calls = [f.delayed(data, batch=batch) for batch in batches]
    ranks.step(calls[0].prefetch())
    for i, batch in enumerate(batches):
        got = ranks.step(calls[i], calls[(i + 1) % 3].prefetch())[0][0]
        np.testing.assert_array_equal(got, data.data[batch])


BEGIN = f"""
size = {SIZE}
if not {GPUS}:
    os.environ["{STAND_INS}"] = sys.argv[1]
import pytensor as engine
x = T.dmatrix("x")
rows = np.random.RandomState(0).uniform(1, 2, (7, 4))
w, g = (engine.shared(np.full(4, value), name) for name, value in (("w", 1.0), ("g", 0.0)))
runtime = Runtime(size, use_gpu=True)
every, loss = runtime.delayed, ((x @ w) ** 2).mean()
plain = {UNPROVED!r}
def build():
    return (
        runtime.function([x], loss, updates=[(g, T.grad(loss, w))], **plain),
        runtime.function([], [], updates=[(w, w - 0.01 * g)], **plain),
        every.all_reduce(g, op="avg"),
    )
gradient, update, average = build()
def step(data=rows):
    return runtime.step(gradient.delayed(data), average, update.delayed())[0]
def on_ranks(variable):
    return [runtime.collectives.get_value(rank, variable) for rank in range(size)]
"""

SEQUENCES = """
h = runtime.function(
    [x], [(x + g, "gather"), (w.sum(), "max"), x.sum(axis=0)],
    updates=[(g, g + x.sum(axis=0), "sum"), (w, w * 0.5 + x.sum(axis=0), "max")], **plain)
host = runtime.function(
    [x], [x.sum(), (x * w).sum()], updates=[(g, g + w)], mode="CVM", **plain)
random = np.random.RandomState(int(sys.argv[2]))
for _ in range(8):
    acts = []
    for what in random.randint(9, size=random.randint(1, 6)):
        some = rows[: random.choice([7, 6, 3, 2, 1, 0])]
        op = random.choice(["avg", "max", "min", "sum"])
        acts.append([
            lambda: gradient.delayed(rows[: 3 + len(some) // 2]),
            lambda: update.delayed(),
            lambda: h.delayed(some, num_slices=random.randint(1, 3)),
            lambda: every.all_reduce(g, op=op),
            lambda: every.all_reduce([w, g], op="avg"),
            lambda: every.broadcast(w),
            lambda: host.delayed(some),
            lambda: every.set_value(random.randint(size), g, rows[0]),
            lambda: every.gather(g),
        ][what]())
    acts += [every.all_reduce(w, op="min"), every.all_reduce(g, op="min")]
    for result in runtime.step(*acts):
        for value in result if isinstance(result, list) else [result]:
            print([] if value is None else np.ravel(value).tolist())
    print([number for value in on_ranks(w) + on_ranks(g) for number in np.ravel(value).tolist()])
runtime.close()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@on_stand_ins  # GPUs round otherwise in other programs
def test_acts_computed_together_give_what_they_give_one_by_one(run_script, seed):
    """Programs of several acts, and cuts between them that differ by rank. XLA rounds otherwise
    where it fuses two of them."""
    together, apart = (run_script(BEGIN + SEQUENCES, n, seed) for n in ("3", "3!"))
    assert (together.status, apart.status) == (0, 0), together.err + apart.err
    lines = together.out.splitlines()
    assert len(lines) > 30
    for line, other in zip(lines, apart.out.splitlines(), strict=True):
        np.testing.assert_allclose(ast.literal_eval(line), ast.literal_eval(other), rtol=1e-12)


KILLED = """
from synk_core.exceptions import WorkerDied
victims, interrupts = map(int, sys.argv[2:])
for victim in range(1, victims + 1):
    before = float(step())
    pid = runtime.worker_pids[victim - 1]
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    began = time.monotonic()
    try:
        while time.monotonic() < began + 20:
            step()
        print("nobody noticed")
    except WorkerDied as error:
        print("died", time.monotonic() - began < 10, w.get_value().shape)
    runtime = Runtime(size, use_gpu=True)
    every = runtime.delayed
    gradient, update, average = build()
    print(float(step()) < before)
for _ in range(interrupts):
    threading.Timer(0.1 * np.random.rand(), signal.raise_signal, (signal.SIGINT,)).start()
    try:
        while True:
            step()
    except KeyboardInterrupt:
        pass
    values = on_ranks(w)
    if not all(np.array_equal(values[0], value) for value in values):
        print("parted", values)
step()
runtime.close()
print("closed")
"""


@pytest.mark.parametrize(
    "victims, interrupts", [(1, 3), pytest.param(SIZE - 1, 10, marks=pytest.mark.nightly)]
)
def test_kills_and_interrupts(run_script, victims, interrupts):
    done = run_script(BEGIN + KILLED, SIZE, victims, interrupts)
    assert done.status == 0, done.err
    lines = [line for line in done.out.splitlines() if not line.startswith("Synk")]
    assert lines == ["died True (4,)", "True"] * victims + ["closed"]


WITHOUT = """
import importlib.abc
class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
from synk_core import StartError
f = T.dvector("v")
with Runtime(2, use_gpu=False) as runtime:
    print(runtime.function([f], (f.sum(), "sum"))(np.ones(3)))
print("jax" in sys.modules)
"""


@pytest.mark.nightly  # tests without JAX installed see it, too
def test_jax_is_neither_needed_nor_imported_on_processors(run_script):
    done = run_script(WITHOUT)
    assert (done.status, done.out.splitlines()[-2:]) == (0, ["3.0", "False"]), done.err


class FakeNvml:
    def __init__(self, count, initialized):
        self._count, self._initialized = count, initialized

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, place):
        place._obj.value = self._count
        return 0

    def cuDeviceGetCount(self, _place):
        return 0 if self._initialized else 3


@on_stand_ins
def test_gpus_that_nobody_asked_for_are_announced(monkeypatch):
    monkeypatch.setenv(STAND_INS, "2")
    for use_gpu, in_environment, said in ((None, "", 1), (True, "", 0), (None, "1", 0)):
        monkeypatch.setenv("SYNKHRONOS_USE_GPU", in_environment)
        found = choose(None, use_gpu, 0, None)
        assert found.devices == ("cuda0", "cuda1")
        assert sum("fork(use_gpu=False)" in line for line in found.lines) == said


def test_gpus_are_counted_and_hidden_without_cuda(monkeypatch):
    monkeypatch.delenv(STAND_INS, raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeNvml(4, False))
    for visible, count in (
        (None, 4),
        ("", 0),
        ("2,3", 2),
        ("1,9,0", 1),
        ("GPU-a,GPU-b", 2),
        ("-1", 0),
    ):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert backend.count() == count
    seen, begun = [], []

    def devices(_kind):
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return ["gpu0", "gpu1"]

    bridge = SimpleNamespace(backends_are_initialized=lambda: bool(begun))
    fake = SimpleNamespace(devices=devices, _src=SimpleNamespace(xla_bridge=bridge))
    for visible, number in ((None, 2), ("5,7", 1)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert backend._gpu(fake, number) == (0, "gpu0")
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    assert seen == ["2", "7"]
    begun.append(True)
    with pytest.raises(StartError, match=r"call fork\(\) before.*XLA_PYTHON_CLIENT_PREALLOCATE"):
        backend._gpu(fake, 1)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert backend._gpu(fake, 1) == (1, "gpu1")


def test_nccl_gets_xlas_buffers_and_a_failed_launch_ends_the_group():
    calls, aborted = [], []

    def prepared(ops, kinds):
        return lambda *given: calls.append((ops, kinds, *given))

    group = NcclGroup(SimpleNamespace(prepared_all_reduce=prepared, abort=aborted.append))
    shapes = [jax.ShapeDtypeStruct((2, 3), "float32"), jax.ShapeDtypeStruct((), "int64")]
    reduced = group.prepared(["sum", "max"], shapes)
    buffers = [
        SimpleNamespace(__cuda_array_interface__={"data": (address, False)}) for address in range(5)
    ]
    reduced(SimpleNamespace(stream=77), buffers[3:], *buffers[:3])  # the third comes before
    kinds = [("<f4", (2, 3)), ("<i8", ())]
    assert calls == [(["sum", "max"], kinds, [0, 1], [3, 4], 77)]
    assert group.launch(lambda *leaves: list(leaves), [1, 2]) == [1, 2]

    def fail():
        raise MemoryError("full")

    with pytest.raises(MemoryError):
        group.launch(fail, [])
    assert aborted == ["a program did not start: MemoryError: full"]


def test_values_of_an_undone_order_are_not_computed():
    notes = pending.Pending(jax.device_put)
    place = [np.ones(2)]
    step = pending.Note(("function", pending.new_key(notes)), lambda a: [a + 1, a * 2])
    likes = [jax.ShapeDtypeStruct((2,), "float64")] * 2
    first = notes.add(step, [jax.numpy.ones(2)], likes)
    notes.put(place, first[0])
    notes.drop()
    np.testing.assert_array_equal(place[0], 1)
    with pytest.raises(RuntimeError, match="undone"):
        np.asarray(first[0])
    second = notes.add(step, [jax.numpy.ones(2)], likes)
    third = notes.add(step, [second[1]], likes)
    notes.put(place, third[0])
    notes.end([])
    assert isinstance(place[0], jax.Array)
    assert second[0].array is None
    np.testing.assert_array_equal(place[0], 3)
    assert isinstance(third[0], Lazy)
