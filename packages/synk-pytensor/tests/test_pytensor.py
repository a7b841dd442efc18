"""What only PyTensor has: NumPy's Generators as random states, and Numba."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from synk_core import Runtime, SpecError, StallWarning
from synk_core._features.stalls.stalls import StallWatch
from synk_core._graph.random_streams import reseed
from synk_core._graph.shared import VariableRegistry
from synk_core._graph.transfer.pickling import dumps
from synk_core._wire.flight import WORDS, Phase
from synk_core._workers.activity import Activity
from synk_core.in_graph import all_reduce
from synk_testing.engine import IS_THEANO, PROGRAM, T, engine
from synk_testing.program import run

BITS = [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]

needs_pytensor = pytest.mark.skipif(IS_THEANO, reason="PyTensor only")
x = T.vector("x")


class Odd(np.random.PCG64):
    pass


@pytest.mark.parametrize("bits", BITS)
def test_each_rank_has_a_generator_of_its_own_that_follows_from_the_state(bits):
    state = np.random.Generator(bits(5))
    draws = {rank: reseed(state, rank).random(100) for rank in (1, 2, 70_000)}
    again = {rank: reseed(np.random.Generator(bits(5)), rank).random(100) for rank in draws}
    np.testing.assert_equal(again, draws)
    assert type(reseed(state, 1).bit_generator) is bits
    plain = np.random.Generator(bits(5)).random(100)
    np.testing.assert_array_equal(state.random(100), plain)  # it was not drawn from
    later = reseed(state, 1).random(100)
    assert len(np.unique([plain, later, *draws.values()])) == 500


def drawing(runtime, rng, **options):
    state, draws = rng.uniform(size=x.shape)
    return runtime.function([x], (draws + 0 * x, "gather"), updates=[(rng, state)], **options)


@needs_pytensor
def test_draws_without_an_update_repeat_on_each_rank(pair):
    f = pair.function([x], (T.random.normal(size=x.shape) + 0 * x, "gather"))
    first, second = f(np.zeros(20)), f(np.zeros(20))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == 20


@needs_pytensor
def test_ranks_draw_the_same_if_that_is_asked_for():
    with Runtime(2, random_streams="identical") as runtime:
        for bits in (np.random.PCG64, Odd):
            rng = T.random.shared_rng(np.random.Generator(bits(7)))
            draws = drawing(runtime, rng)(np.zeros(20))
            np.testing.assert_array_equal(draws[:10], draws[10:])


@needs_pytensor
def test_states_by_which_all_ranks_would_draw_the_same_are_refused(pair):
    odd = engine.shared(np.random.Generator(Odd(7)), name="odd")
    with pytest.raises(SpecError, match=r"odd is a Generator of Odd, .*identical"):
        drawing(pair, odd)
    rng = T.random.shared_rng(seed=7)
    f = drawing(pair, rng)
    first = f(np.zeros(20))
    rng.set_value(odd.get_value())
    with pytest.raises(SpecError, match=r"a Generator of Odd"):
        f(np.zeros(20))
    rng.set_value(np.random.default_rng(7))
    np.testing.assert_array_equal(f(np.zeros(20)), first)
    fixed = odd.type.make_constant(np.random.default_rng(7))
    draws = T.random.uniform(size=(), rng=fixed)
    with pytest.raises(SpecError, match=r"constant of the graph of fixed, .*pytensor\.shared"):
        pair.function([x], (x + draws, "gather"), name="fixed")
    looped = engine.scan(lambda row: row + T.random.uniform(size=(), rng=fixed), x)
    looped = looped[0] if isinstance(looped, tuple) else looped
    with pytest.raises(SpecError, match="constant of the graph"):
        pair.function([x], (looped, "gather"))


LOADED = """
import pickle, sys
from synk_core._graph.shared import VariableRegistry
from synk_core._graph.spec import make_spec
from synk_core._graph.transfer.pickling import loads
from synk_core.engine import compile_ahead
with open(sys.argv[1], "rb") as file:
    data, buffers = pickle.load(file)
function = loads(data, VariableRegistry(), buffers)
compile_ahead(function)
stats = function.vm.jit_fn.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
function(np.ones((4, 3)), np.ones((3, 2)))
print(len(function.vm.jit_fn.signatures))
"""


def network():
    """Several products, whose order the optimiser may choose."""
    x, w = T.matrix("x"), T.matrix("w")
    hidden = T.tanh(x.dot(w))
    loss = (hidden.dot(hidden.T) - x.dot(x.T)).mean() + T.sqr(w).sum()
    return [x], [w], [(loss, "avg"), (T.grad(loss, w), "avg")]


def reducing():
    """The same with reductions over ranks in the middle, of an array and of a number."""
    [x], [w], [(loss, _), _] = network()
    loss = T.sqr(x - all_reduce(x.mean(axis=0), "avg")).mean() * all_reduce(loss, "avg")
    return [x], [w], [(loss, "avg"), (T.grad(loss, w), "avg")]


@needs_pytensor
@pytest.mark.parametrize("make", [network, reducing])
def test_a_worker_loads_code_that_the_master_compiled(run_script, tmp_path, make):
    rows, whole, outputs = make()
    with Runtime(1) as runtime:
        f = runtime.function(rows, bcast_inputs=whole, outputs=outputs, mode="NUMBA")
        (compiled,) = runtime._rank.functions[f.number].forms.values()
        assert len(compiled.vm.jit_fn.signatures) == 1  # before any call
        data, buffers = dumps(compiled, VariableRegistry())
    file = tmp_path / "function"
    file.write_bytes(pickle.dumps((data, [bytes(buffer) for buffer in buffers])))
    status, out, err = run_script(PROGRAM + LOADED, str(file))
    assert status == 0, err
    assert out.split() == ["1", "0", "1"]


@needs_pytensor
@pytest.mark.parametrize("ranks", ["pair", "trio"])
def test_reductions_in_numbas_code_are_those_of_all_rows(request, ranks):
    runtime = request.getfixturevalue(ranks)
    x, w = T.matrix("x"), T.vector("w")
    spread = T.sqr(x - all_reduce(x.mean(axis=0), "avg")).mean()
    product = spread * all_reduce(T.tanh(x.dot(w)).mean(), "avg")
    count = all_reduce(x.shape[0])
    f = runtime.function(
        [x],
        bcast_inputs=[w],
        outputs=[(product, "avg"), (T.grad(product, w), "avg"), (count, None)],
        mode="NUMBA",
    )
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(11, 3)), rng.normal(size=3)
    value, gradient, counted = f(rows, weights)
    activation, variance = np.tanh(rows @ weights), rows.var(axis=0).mean()
    np.testing.assert_allclose(value, variance * activation.mean(), rtol=1e-12)
    expected = variance * ((1 - activation**2)[:, None] * rows).mean(axis=0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
    assert counted == 11


@needs_pytensor
def test_operations_are_translated_once_for_each_kind(monkeypatch):
    from pytensor.link.numba.dispatch import basic

    plain, translated = basic.numba_funcify_ensure_cache, []

    def noted(op, *arguments, node=None, **settings):
        translated.append(type(op).__name__)
        return plain(op, *arguments, node=node, **settings)

    monkeypatch.setattr(basic, "numba_funcify_ensure_cache", noted)
    x, w = T.matrix("x"), T.matrix("w")
    row, narrow = T.row("row"), T.fmatrix("narrow")
    y = x
    for _ in range(6):
        y = T.tanh(y.dot(w))
    others = [x.dot(w) * row, narrow * narrow, T.tanh(narrow), narrow.dot(narrow), w.T.dot(row.T)]
    with Runtime(1) as runtime:
        f = runtime.function(
            [x],
            bcast_inputs=[w, row, narrow],
            outputs=[(y, "gather"), *((other, None) for other in others)],
            mode="NUMBA",
        )
        assert 2 <= translated.count("Dot") <= 5  # 9 nodes, of 2 dtypes and patterns of length 1
        rng = np.random.default_rng(0)
        values = [rng.normal(size=shape) for shape in ((4, 3), (3, 3), (1, 3))]
        values.append(rng.normal(size=(3, 3)).astype("float32"))
        results = f(*values)
    x_, w_, row_, narrow_ = values
    y_ = x_
    for _ in range(6):
        y_ = np.tanh(y_ @ w_)
    np.testing.assert_allclose(results[0], y_, rtol=1e-12)
    expected = [x_ @ w_ * row_, narrow_**2, np.tanh(narrow_), narrow_ @ narrow_, w_.T @ row_.T]
    for result, wanted in zip(results[1:], expected):
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-5 if wanted.dtype == "f4" else 1e-12)


@needs_pytensor
def test_arguments_of_any_layout_are_of_one(pair):
    y = T.matrix("y")
    s = engine.shared(np.asfortranarray(np.ones((2, 2))), name="s")
    f = pair.function([y], ((y * 2).dot(s), "gather"), updates=[(s, s + 1, "sum")], mode="NUMBA")
    value = np.arange(24.0).reshape(12, 2)
    fixed = value.copy()
    fixed.flags.writeable = False
    factor = np.ones((2, 2))
    for given in (value, np.asfortranarray(value), fixed, value[:, ::-1][:, ::-1]):
        for batch in (None, slice(None, None, 2), [3, 1, 2]):
            picked = value if batch is None else value[batch]
            expected = (picked * 2).dot(factor)
            np.testing.assert_allclose(f(given, batch=batch), expected, rtol=1e-14)
            factor += 1
    for compiled in pair._rank.functions[f.number].forms.values():
        assert len(compiled.vm.jit_fn.signatures) == 1


FAILING = """
from synk_core import Runtime
x, z = T.vector("x"), T.vector("z")
with Runtime(2) as runtime:
    f = runtime.function([x], bcast_inputs=[z], outputs=(x * z, "gather"), mode="NUMBA", name="f")
    try:
        f(np.ones(4), np.ones(5))
    except ValueError as error:
        print(error, *error.__notes__)
    print(f(np.ones(4), np.ones(2)))
"""


@needs_pytensor
def test_an_error_is_named_and_calls_continue(run_script):
    """Numba keeps the arguments of a call that failed, so this is a program of its own."""
    status, out, err = run_script(PROGRAM + FAILING)
    assert status == 0, err
    assert "incompatible shape" in out
    assert "in function 'f', rows 0 to 1 of the call's 4, on rank 0 of 2" in out
    assert out.endswith("[1. 1. 1. 1.]\n")


def test_a_rank_that_compiles_is_no_stall(recwarn):
    activity = Activity(np.zeros(2 * WORDS, np.int64), 2, 0)
    pool, settings = SimpleNamespace(stacks=lambda _ranks: {}), SimpleNamespace(stall_s=0.0)
    watch = StallWatch(
        SimpleNamespace(activity=activity, pool=pool, settings=settings, wait_began=1.0)
    )
    flights = activity.flights
    flights[1].enter(Phase.COMPILE)
    watch.check()
    assert not recwarn.list
    flights[1].enter(Phase.COMPUTE)
    watch.check()
    assert recwarn.pop(StallWarning)


@needs_pytensor
def test_workers_compile_with_the_masters_flags():
    """Which PyMC changes when it is imported; else each worker would compile all C code anew."""
    from pytensor.compile.ops import as_op

    before = engine.config.gcc__cxxflags
    engine.config.gcc__cxxflags = f"{before} -fno-exceptions"
    try:

        @as_op([T.dvector], [T.dvector])
        def flags(values):
            return np.array([engine.config.gcc__cxxflags.count("-fno-exceptions")], float)

        with Runtime(2) as runtime:
            x = T.dvector("x")
            found = runtime.function([x], (flags(x), "gather"), proof=False)(np.zeros(2))
        assert found.tolist() == [before.count("-fno-exceptions") + 1] * 2
    finally:
        engine.config.gcc__cxxflags = before


BLAS = """
from synk_core import Runtime
from synk_pytensor import _engine

config = engine.config
shared = engine.shared(np.zeros(1))
with Runtime(2) as runtime:
    runtime.collectives.broadcast(shared)
print("blas__ldflags" in _engine.options(), hasattr(type(config).blas__ldflags, "val"))
config.blas__ldflags = "-lm"
print(_engine.options()["blas__ldflags"])
"""


@needs_pytensor
def test_a_program_of_numbas_searches_for_no_blas():
    """The search runs g++ several times, and warns where PyTensor comes from pip."""
    flags = {"PYTENSOR_FLAGS": "linker=auto"}
    status, out, err = run(PROGRAM + BLAS, environment=flags)
    assert (status, out) == (0, "False False\n-lm\n"), err
    assert "BLAS" not in err


FOREIGN = {"PYTORCH": "torch", "MLX": "mlx"}


def foreign(mode):
    """The mode, if its library is there."""
    library = FOREIGN[mode]
    pytest.importorskip(library, reason=f"needs {library}, which no environment of the tests has")
    return mode


@needs_pytensor
@pytest.mark.parametrize("mode", FOREIGN)
def test_modes_that_cannot_run_on_ranks_are_refused(pair, mode):
    linker = {"PYTORCH": "PytorchLinker", "MLX": "MLXLinker"}[mode]
    mean = all_reduce(x.mean(), "avg")
    with pytest.raises(SpecError, match=f"all_gather and is compiled by {linker}"):
        pair.function([x], (x - mean).sum(), mode=mode)
    with pytest.raises(SpecError, match=f"draws random numbers from .*, of which {linker} keeps"):
        drawing(pair, T.random.shared_rng(seed=7), mode=mode)


class Lent(np.ndarray):
    """An array of another library, as far as matters here: not NumPy's, and read-only."""


@needs_pytensor
def test_results_of_another_library_become_arrays_that_can_be_written():
    from pytensor.compile.mode import Mode
    from pytensor.link.basic import JITLinker

    class Linker(JITLinker):
        def fgraph_convert(self, fgraph, **_):
            graph = fgraph.clone()
            return engine.function(graph.inputs, graph.outputs, mode="FAST_COMPILE")

        def jit_compile(self, fn):
            def call(*arguments):
                results = [np.array(result).view(Lent) for result in fn(*arguments)]
                for result in results:
                    result.flags.writeable = False
                return results

            return call

        def create_thunk_inputs(self, storage_map):
            return [storage_map[variable] for variable in self.fgraph.inputs]

    total = engine.shared(np.zeros(3), name="total")
    with Runtime(1) as runtime:
        f = runtime.function(
            [x],
            (2 * x, None),
            updates=[(total, total + x)],
            mode=Mode(linker=Linker(), optimizer="fast_compile"),
        )
        for _ in range(2):
            result = f(np.arange(3.0))
            np.testing.assert_array_equal(result, [0, 2, 4])
            assert type(result) is np.ndarray
            assert result.flags.writeable
        value = total.get_value(borrow=True)
        np.testing.assert_array_equal(value, [0, 2, 4])
        assert type(value) is np.ndarray
        assert value.flags.writeable
