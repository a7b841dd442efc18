"""Each patch: what fails without it, and the right numbers with it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])

IMPORT = "import theano, theano.tensor as T, numpy as np\n"
BUILT_IN = "assert np.bool is bool and np.complex is complex\n"
NO_BLAS = "import os; os.environ['THEANO_FLAGS'] = 'blas.ldflags='\n"


def is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


COUNTED = """
from theano.gof import cmodule
compiled, compile_str = [], cmodule.GCC_compiler.compile_str
cmodule.GCC_compiler.compile_str = lambda *a, **kw: compiled.append(1) or compile_str(*a, **kw)
x = T.matrix()
f = theano.function([x], T.nnet.softmax(T.tanh(x) + T.arange(3)), profile=False)
assert np.allclose(f(np.zeros((2, 3), x.dtype)).sum(axis=1), 1)
print(len(compiled))
"""


@pytest.mark.nightly
def test_ops_without_props_are_compiled_once_for_all_processes(run):
    run(IMPORT + COUNTED)
    assert int(run(IMPORT + COUNTED).stdout) == 0
    assert int(run(IMPORT + COUNTED, skip="P2").stdout) > 0


@pytest.mark.nightly
def test_version_of_ops_in_c_files_is_the_same_in_every_process(run, tmp_path: Path):
    path = tmp_path / "op.c"
    path.write_text("#section support_code\nint synk_test;\n")
    code = f"from theano.gof.op import COp\nprint(COp({str(path)!r}).c_code_cache_version())"
    hashes = [{"PYTHONHASHSEED": str(seed)} for seed in (1, 2)]
    for patch, versions in (("", 1), ("P3", 2)):
        assert len({run(code, env=seed, skip=patch).stdout for seed in hashes}) == versions


SCAN = """
x = T.vector()
sums, _ = theano.scan(lambda a, s: s + a, sequences=x, outputs_info=np.asarray(0, x.dtype))
f = theano.function([x], [sums, T.grad((sums**2).sum(), x)])
values = np.arange(1, 5, dtype=x.dtype)
sums, grad = f(values)
assert np.array_equal(sums, values.cumsum())
assert np.array_equal(grad, 2 * values.cumsum()[::-1].cumsum()[::-1])
"""


@pytest.mark.slow
@pytest.mark.nightly  # it compiles; that scan works is seen by other tests
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the extension still compiles")
def test_scan_runs_although_its_extension_cannot_be_compiled(run, tmp_path: Path):
    # In a cache of its own, because the failed attempt leaves its ruins there.
    cold = f"base_compiledir={tmp_path},optimizer=None"
    failed = run(IMPORT + SCAN, skip="P4", flags=cold, fails=True)
    assert "longintrepr.h" in failed.stderr + failed.stdout
    run(IMPORT + SCAN, flags="optimizer=None")


EMPTY = """
for dtype in ("float32", "float64"):
    a, b = T.matrix(dtype=dtype), T.matrix(dtype=dtype)
    s = theano.shared(np.ones((3, 4), dtype))
    gradient = theano.function([a, b], updates=[(s, 2 * s + T.dot(a.T, b))])
    assert any(type(n.op).__name__ == "Gemm" for n in gradient.maker.fgraph.toposort())
    x, y = np.arange(6, dtype=dtype).reshape(2, 3), np.arange(8, dtype=dtype).reshape(2, 4)
    gradient(x[:0], y[:0])
    assert np.array_equal(s.get_value(), np.full((3, 4), 2.0)), s.get_value()
    gradient(x, y)
    assert np.array_equal(s.get_value(), 4 + x.T.dot(y))
    dot = theano.function([a, b], T.dot(a, b))
    assert np.array_equal(dot(np.ones((3, 0), dtype), np.ones((0, 2), dtype)), np.zeros((3, 2)))
    for shape in ((0, 3, 4), (2, 3, 0), (0, 0, 0), (0, 3, 0)):
        left, right = np.ones(shape[:2], dtype), np.ones(shape[1:], dtype)
        assert dot(left, right).shape == (shape[0], shape[2])
    plus = theano.function([a, b], 3 * T.dot(a, b) + 1)
    assert np.array_equal(plus(np.ones((3, 0), dtype), np.ones((0, 2), dtype)), np.ones((3, 2)))
"""

TOPK = """
x = T.matrix()
values, where = theano.function([x], T.topk_and_argtopk(x, 2, axis=0, sorted=False))(
    np.array([[1, 9], [5, 2], [3, 4]], x.dtype)
)
assert np.array_equal(np.sort(values, axis=0), [[3, 4], [5, 9]])
assert np.array_equal(np.sort(where, axis=0), [[1, 0], [2, 2]])
only = theano.function([x], T.topk(x, -2, axis=1, sorted=False))
assert np.array_equal(np.sort(only(np.array([[3, 1, 2]], x.dtype))), [[1, 2]])
"""

POOL = """
from theano.tensor.signal.pool import pool_2d
x, v = T.tensor4(), T.tensor4()
values = np.random.RandomState(0).permutation(32).reshape(1, 2, 4, 4).astype(x.dtype)
blocks = values.reshape(1, 2, 2, 2, 2, 2)
top = pool_2d(x, (2, 2), ignore_border=True)
python = theano.Mode(linker="py", optimizer=None)
assert np.array_equal(theano.function([x], top, mode=python)(values), blocks.max(axis=(3, 5)))
rop = theano.function([x, v], T.Rop(top, x, v), mode=python)
assert np.array_equal(rop(values, 2 * values), 2 * blocks.max(axis=(3, 5)))
"""

# NumPy 1.24 removed the names; older ones answer for them with a warning. Removing them here is
# what that release did, except that a newer NumPy has to be left as it is.
REMOVED = """
import numpy as np
for name in ("bool", "int", "float", "complex", "object", "str"):
    vars(np).pop(name, None)
    getattr(np, "__deprecated_attrs__", {}).pop(name, None)
try:
    np.complex
except AttributeError:
    pass
else:
    raise SystemExit("the name is still there")
"""

BATCHED = """
for dtype in ("float32", "float64"):
    a, b = T.tensor3(dtype=dtype), T.tensor3(dtype=dtype)
    f = theano.function([a, b], T.batched_dot(a, b))
    x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    y = np.arange(40, dtype=dtype).reshape(2, 4, 5)
    assert np.array_equal(f(x, y), x @ y)
    assert f(x[:0], y[:0]).shape == (0, 3, 5)
    assert np.array_equal(f(x[:, :, :0], y[:, :0]), np.zeros((2, 3, 5)))
"""

GEMV_PROBE = """
from theano.gof import cmodule
tried, attempt = [], cmodule.GCC_compiler.try_compile_tmp
cmodule.GCC_compiler.try_compile_tmp = lambda *a, **kw: tried.append(kw) or attempt(*a, **kw)
a, v = T.matrix(), T.vector()
f = theano.function([a, v], T.dot(a, v))
assert any(type(n.op).__name__ == "CGemv" for n in f.maker.fgraph.toposort())
x = np.arange(6, dtype=a.dtype).reshape(2, 3)
assert np.array_equal(f(x, x[0]), x.dot(x[0]))
assert np.array_equal(f(x[:, :0], x[0, :0]), [0, 0])
print(sum(options.get("tmp_prefix") == "check_beta_" for options in tried))
"""


def test_gemv_asks_no_compiler(run, forked):
    assert int(forked(IMPORT + GEMV_PROBE).stdout) == 0
    assert int(run(IMPORT + GEMV_PROBE, skip="P9").stdout) > 0


# What an environment without setuptools, or with one of today, looks like.
HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "pkg_resources":
            raise ModuleNotFoundError("No module named 'pkg_resources'", name=name)
sys.meta_path.insert(0, Hide())
import {0}
assert "pkg_resources" not in sys.modules
"""
LASAGNE = HIDDEN.format("lasagne") + "assert lasagne.__version__ == '0.1'\n"


# What is run of what lies among temporary files, and whether anybody else can write beside it.
PROBES = """
import os, stat, sys, tempfile
ran = []
def look(event, arguments):
    if event == "subprocess.Popen":
        path = str(arguments[1][0])
        if os.path.realpath(path).startswith(os.path.realpath(tempfile.gettempdir()) + os.sep):
            ran.append(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode))
sys.addaudithook(look)
os.umask(0)
import theano
print(len(ran) > 0, *{oct(mode) for mode in ran}, os.listdir(tempfile.gettempdir()))
"""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_programs_that_are_tried_cannot_be_exchanged(run, tmp_path: Path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t").chmod(0o1777)
    # Without -march Theano tries what this processor can do.
    flags = f"base_compiledir={tmp_path / 'c'},gcc.cxxflags=-O0"
    how = {"env": {"TMPDIR": str(tmp_path / "t")}, "flags": flags}
    assert run(PROBES, **how).stdout == "True 0o700 []\n"
    shutil.rmtree(tmp_path / "c")
    assert run(PROBES, skip="P14", **how).stdout == "True 0o1777 []\n"


# Which of these modules importing Theano leaves behind, and whose distutils is imported after it.
SETUPTOOLS = """
import sys, warnings
{before}
try: import theano
except ImportError: pass
print(*(name in sys.modules for name in ("setuptools", "distutils")))
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "pkg_resources is deprecated")
import setuptools, distutils
print("setuptools" in distutils.__file__)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("before", ["", "sys.modules['theano.scalar'] = None"], ids=["", "fails"])
def test_importing_theano_leaves_setuptools_alone(run, before):
    pytest.importorskip("setuptools")
    code = SETUPTOOLS.format(before=before)
    assert run(code).stdout == "False False\nTrue\n"
    assert run(code, skip="P10").stdout != "False False\nTrue\n"


# What there is of SciPy after importing Theano, and whether it is whole when it is asked for.
SCIPY = """
import sys, numpy as np, theano, theano.tensor as T, theano.tensor.slinalg as slinalg
parts = "special", "stats", "linalg", "sparse", "signal"
print(*(part for part in parts if any(m.startswith("scipy." + part) for m in sys.modules)))
flags = theano.tensor.nnet.conv, theano.tensor.nnet.abstract_conv
print(*(module.imported_scipy_signal for module in flags), theano.tensor.blas.have_fblas)
x, a = T.dvector(), T.dmatrix()
gemv = T.blas.gemv_no_inplace(x, 2.0, a, x, 1.0)
results = [T.chi2sf(x, 3.0), T.erfinv(x / 4), slinalg.cholesky(a), gemv]
values, matrix = np.array([1.0, 2.0]), np.array([[2.0, 1.0], [1.0, 3.0]])
ours = theano.function([x, a], results, mode=theano.Mode("py", None))(values, matrix)
import scipy.signal, scipy.stats, scipy.special, scipy.linalg
np.testing.assert_array_equal(ours[0], scipy.stats.chi2.sf(values, 3.0))
np.testing.assert_array_equal(ours[1], scipy.special.erfinv(values / 4))
np.testing.assert_array_equal(ours[2], scipy.linalg.cholesky(matrix, lower=True))
np.testing.assert_array_equal(ours[3], values + 2 * matrix @ values)
assert np.array_equal(scipy.signal.convolve([1, 2], [1, 1]), [1, 3, 2])
# Of scipy.linalg, Theano has imported the functions of BLAS by themselves.
assert scipy.linalg.blas is sys.modules["scipy.linalg.blas"]
np.testing.assert_array_equal(scipy.linalg.blas.dgemm(1.0, matrix, matrix), matrix @ matrix)
assert scipy.linalg.get_blas_funcs("gemv", (matrix,)) is scipy.linalg.blas.dgemv
import theano.sparse
"""


def test_parts_of_scipy_are_imported_when_they_are_used(run):
    with_it, without = run(SCIPY).stdout.splitlines(), run(SCIPY, skip="P13").stdout.splitlines()
    assert with_it[0] == ""
    assert without[0] == "special stats linalg sparse signal"
    assert with_it[1] == "True True True"
    assert without[1] == "False False True", "names that SciPy has moved are not found"


FAILING = """
import sys
sys.modules["{}"] = None
try: import theano
except ImportError: pass
import scipy.stats, scipy.signal, scipy.linalg
assert scipy.stats.norm.cdf(0.0) == 0.5
names = scipy.signal.__name__, scipy.linalg.blas.__name__
assert names == ("scipy.signal", "scipy.linalg.blas")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["theano.scalar", "theano.tensor.opt", "theano.tensor.nnet.bn"])
def test_scipys_parts_are_real_whatever_happens_to_the_import(run, module):
    run(FAILING.format(module))


def test_failing_patch_is_named_and_the_others_go_on(run):
    code = (
        "from synk_theano_compat._patches import apply\n"
        "def broken(): raise LookupError('not this Theano')\n"
        "first, *others = apply.AFTER['theano.tensor.blas']\n"
        "apply.AFTER['theano.tensor.blas'] = (first._replace(run=broken), *others)\n"
        + IMPORT
        + "print([r for n, _, r in apply.applied if n in ('P5', 'P8')])"
    )
    done = run(code)
    assert "RuntimeWarning: synk_theano_compat: patch P5" in done.stderr
    assert "BatchedDot.c_code" in done.stdout


def test_source_of_another_theano_is_not_rewritten(forked):
    code = IMPORT + (
        "from synk_theano_compat._patches.rewrite import rewrite\n"
        "from theano.tensor.sort import _topk_py_impl\n"
        "try: rewrite(_topk_py_impl, 'not there', '', 1)\n"
        "except LookupError as error: print(error)"
    )
    assert "this is not Theano 1.0.5" in forked(code).stdout


PRODUCT = """
import numpy as np
def product(*args, **kwargs):
    raise DeprecationWarning("as NumPy 1.25 would say")
np.product = product
import theano, theano.tensor as T
x, y, z = T.dvectors("x", "y", "z")
f = theano.function([x, y, z], x * y * z, mode=theano.Mode("py", "fast_run"))
values = np.arange(12.0).reshape(3, 4)
np.testing.assert_array_equal(f(*values), values[0] * values[1] * values[2])
"""

KEPT = """
import gc, weakref
import numpy as np, theano, theano.tensor as T
x = T.dmatrix()
w = theano.shared(np.ones((3, 3)))
theano.function([x], w.sum(), updates=[(w, T.tanh(w + T.dot(x, w)) * 0.5)])
later = T.dvector()
gone = weakref.ref(later)
del later
gc.collect()
assert gone() is None
assert theano.gof.graph.Variable.construction_observers == []
"""

# A signal at each line where a function is made.
INTERRUPTED = """
import sys, theano
from theano.compile.function_module import FunctionMaker
x = theano.tensor.vector()

def is_interrupted_at(wanted):
    lines = iter(range(1, wanted))

    def interrupt(frame, event, _):
        if event == "line" and next(lines, None) is None:
            raise KeyboardInterrupt
        return interrupt

    code = FunctionMaker.__init__.__code__
    sys.settrace(lambda frame, *_: interrupt if frame.f_code is code else None)
    try:
        theano.function([x], x + 1, mode=theano.Mode("py", None))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False

count = 1
while is_interrupted_at(count):
    count += 1
assert count > 30, count
"""

MPI_STAYS_OUT = """
import sys, theano, theano.tensor as T, theano.tensor.io as io
assert not [name for name in sys.modules if name.startswith("mpi4py")]
"""
MESSAGE = """
import numpy as np
from theano.gof import sched
x = T.matrix('x')
sent = io.send(x, 0, 11)
received = io.recv((2, 2), x.dtype, 0, 11)
order = sched.sort_schedule_fn(*io.mpi_cmps)
mode = theano.Mode(optimizer=None, linker=theano.gof.PerformLinker(schedule=order))
value = np.arange(4.0).reshape(2, 2).astype(x.dtype)
_, got = theano.function([x], [sent, received], mode=mode)(value)
assert np.array_equal(got, value), got
"""


def case(
    patch: str, code: str, said: str, name: str = "", *, night: bool = True, where: bool = True
) -> Any:
    """Return a case of `test_patch`; `said`: without the patch, where it is needed."""
    marks = [pytest.mark.nightly] * night
    said = said if where else ""
    return pytest.param(patch, code, said, id=f"{patch}-{name}".rstrip("-"), marks=marks)


@pytest.mark.parametrize(
    ("patch", "code", "said"),
    [
        # NumPy before and after answers what its BLAS is.
        case("P1", IMPORT, "blas_opt_info", night=False, where=(1, 22) <= NUMPY < (1, 26)),
        # Strides of empty arrays were not yet 0.
        case("P5", IMPORT + EMPTY, "no unit stride", night=False, where=NUMPY >= (1, 23)),
        case("P6", IMPORT + TOPK, "Error", "topk", night=False, where=NUMPY >= (1, 23)),
        case("P6", IMPORT + POOL, "Error", "pool", where=NUMPY >= (1, 23)),
        case("P7", REMOVED + IMPORT + BUILT_IN + EMPTY, "AttributeError"),
        case("P8", NO_BLAS + IMPORT + BATCHED + EMPTY, "undefined symbol"),
        case("P10", HIDDEN.format("theano.gpuarray.linalg"), "pkg_resources", "gpuarray"),
        *([case("P10", LASAGNE, "pkg_resources", "lasagne")] if is_there("lasagne") else []),
        case("P15", PRODUCT, "as NumPy 1.25 would say"),
        case("P16", KEPT, "AssertionError", night=False),
        case("P17", MPI_STAYS_OUT, "AssertionError", night=False, where=is_there("mpi4py")),
        case("P18", INTERRUPTED, "UnboundLocalError: .*opt_time"),
    ],
)
def test_patch(run, patch: str, code: str, said: str):
    run(code)
    if said:
        assert re.search(said, run(code, skip=patch, fails=True).stderr)


@pytest.mark.nightly
def test_its_ops_send_messages_all_the_same(run):
    pytest.importorskip("mpi4py")
    run(MPI_STAYS_OUT + MESSAGE)


NO_PYGPU = "import sys; sys.modules['pygpu'] = None\n" + IMPORT


@pytest.mark.nightly
def test_a_gpu_that_is_not_there_is_reported_in_one_line(run):
    told = run(NO_PYGPU, flags="device=cuda").stderr.splitlines()
    assert len(told) == 1
    assert "flags name a GPU, but pygpu cannot be imported" in told[0]
    assert "synk_theano_compat --cuda" in told[0]
    assert run(NO_PYGPU, flags="device=cpu").stderr == ""
    assert "NoneType: None" in run(NO_PYGPU, flags="device=cuda", skip="G7").stderr
