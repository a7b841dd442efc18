"""cuDNN through Theano on a real device, each test in a process of its own, against NumPy."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import lru_cache
from glob import glob

import pytest

import synk_testing

TIMEOUT_S = 500
PATH_VARIABLE = "SYNKHRONOS_CUDA_PATH"


@lru_cache
def status() -> dict:
    """Return what is found of CUDA, in a process of its own: none is left behind in this one."""
    command = [sys.executable, "-m", "synk_theano_compat", "--cuda"]
    return json.loads(subprocess.check_output(command, text=True, timeout=120))


def reason() -> str:
    """Return why there is nothing to test here; nothing if there is."""
    if not glob("/dev/nvidia[0-9]*") and not glob("/dev/dxg"):
        return "no CUDA device is there (/dev/nvidia0)"
    if importlib.util.find_spec("pygpu") is None:
        return "pygpu is not installed (apt install python3-pygpu libgpuarray-dev)"
    if not status()["devices"]:
        return f"no CUDA device can be used: {status()['error']}"
    return ""


REASON = reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]

START = """
import itertools
import numpy as np
import synk_theano_compat; synk_theano_compat.install()
import theano, theano.tensor as T, theano.gpuarray
from theano.gpuarray import dnn
assert dnn.dnn_available(None), dnn.dnn_available.msg
random = np.random.RandomState(7)
CPU = theano.compile.mode.get_mode("FAST_RUN").excluding("gpuarray_opt", "gpua_scanOp_make_inplace")

def ops(function):
    return {type(node.op).__name__ for node in function.maker.fgraph.toposort()}

def close(got, expected, tolerance=1e-4):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    scale = np.abs(expected).max()
    assert np.abs(got - expected).max() <= tolerance * scale, np.abs(got - expected).max() / scale
"""

# Cross-correlation and its gradients, one offset of the filters at a time.
NUMPY_CONV = """
def reference(x, w, dy, pad, stride, groups):
    n, o, nd = len(x), len(w), x.ndim - 2
    xp = np.pad(x, [(0, 0), (0, 0)] + [(pad, pad)] * nd).astype("float64")
    outer = [(size - k) // stride + 1 for size, k in zip(xp.shape[2:], w.shape[2:])]
    w64 = w.reshape(groups, o // groups, w.shape[1], *w.shape[2:]).astype("float64")
    dy64 = dy.reshape(n, groups, o // groups, -1).astype("float64")
    y, dw, dxp = np.zeros_like(dy64), np.zeros_like(w64), np.zeros_like(xp)
    for offset in itertools.product(*map(range, w.shape[2:])):
        index = tuple(slice(a, a + stride * (b - 1) + 1, stride) for a, b in zip(offset, outer))
        index = (slice(None), slice(None)) + index
        patch = xp[index].reshape(n, groups, x.shape[1] // groups, -1)
        at = (slice(None), slice(None), slice(None)) + offset
        y += np.einsum("ngcs,goc->ngos", patch, w64[at])
        dw[at] = np.einsum("ngcs,ngos->goc", patch, dy64)
        dxp[index] += np.einsum("ngos,goc->ngcs", dy64, w64[at]).reshape(xp[index].shape)
    inner = (slice(None), slice(None)) + tuple(slice(pad, pad + size) for size in x.shape[2:])
    return y.reshape(n, o, *outer), dxp[inner], dw.reshape(w.shape)

def check(nd, pad, stride, groups, dtype="float32", tolerance=1e-4):
    shape = (4, 6) + (9, 11, 10)[:nd]
    x = random.normal(size=shape).astype(dtype)
    w = random.normal(size=(8, 6 // groups) + (3,) * nd).astype(dtype)
    outer = tuple((size + 2 * pad - 3) // stride + 1 for size in shape[2:])
    dy = random.normal(size=(4, 8) + outer).astype(dtype)
    variables = [T.TensorType(dtype, (False,) * (nd + 2))() for _ in range(3)]
    vx, vw, vdy = variables
    conv = T.nnet.conv2d if nd == 2 else T.nnet.conv3d
    vy = conv(vx, vw, border_mode=pad, subsample=(stride,) * nd, filter_flip=False,
              num_groups=groups, input_shape=None, filter_shape=w.shape)
    gradients = theano.grad(None, [vx, vw], known_grads={vy: vdy})
    f = theano.function(variables, [vy] + gradients, on_unused_input="ignore")
    wanted = {"GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW"}
    assert wanted <= ops(f), ops(f)
    for _ in range(2):  # the second call takes the algorithm that the first has chosen
        for got, expected in zip(f(x, w, dy), reference(x, w, dy, pad, stride, groups)):
            close(got, expected, tolerance)
"""


def run(code: str, flags: str = "", **changes: str) -> str:
    flags = ",".join(filter(None, ["device=cuda0,force_device=True,floatX=float32", flags]))
    # TF32, which cuDNN may take for float32 since Ampere, has 10 bits: that is no fault.
    changes = {"THEANO_FLAGS": flags, "NVIDIA_TF32_OVERRIDE": "0", **changes}
    status, out, err = synk_testing.run(START + code, environment=changes, limit_s=TIMEOUT_S)
    assert status == 0, f"{out}\n{err}"
    return out


@pytest.mark.parametrize(
    ("checks", "algorithm"),
    [
        ("2, 0, 1, 1; 2, 1, 1, 1; 2, 1, 2, 1; 2, 1, 1, 2; 2, 0, 2, 2", ""),
        ("3, 0, 1, 1; 3, 1, 2, 1; 3, 1, 1, 2", ""),
        ("2, 1, 1, 1, 'float64', 1e-10", ""),
        *(("2, 1, 1, 1; 3, 1, 1, 1", a) for a in ("guess_once", "guess_on_shape_change", "none")),
    ],
)
def test_convolutions_and_both_gradients(checks, algorithm):
    names = ("algo_fwd", "algo_bwd_data", "algo_bwd_filter") if algorithm else ()
    flags = ",".join(f"dnn.conv.{name}={algorithm}" for name in names)
    run(NUMPY_CONV + "".join(f"check({arguments})\n" for arguments in checks.split("; ")), flags)


def test_pooling():
    run(
        """
from theano.tensor.signal.pool import pool_2d, pool_3d
for pool, nd in ((pool_2d, 2), (pool_3d, 3)):
    value = random.normal(size=(2, 3) + (8, 10, 6)[:nd]).astype("float32")
    for mode in ("max", "average_exc_pad", "average_inc_pad"):
        x = T.TensorType("float32", (False,) * (nd + 2))()
        y = pool(x, ws=(2,) * nd, ignore_border=True, mode=mode)
        outputs = [y, theano.grad((y ** 2).sum(), x)]
        f, g = theano.function([x], outputs), theano.function([x], outputs, mode=CPU)
        assert {"GpuDnnPool", "GpuDnnPoolGrad"} <= ops(f), ops(f)
        assert not any(name.startswith("Gpu") for name in ops(g))
        for got, expected in zip(f(value), g(value)):
            close(got, expected)
"""
    )


def test_batch_normalization():
    run(
        """
from theano.tensor.nnet.bn import batch_normalization_train, batch_normalization_test
x, gamma, beta = T.ftensor4(), T.fvector(), T.fvector()
as_x = lambda v: v.dimshuffle("x", 0, "x", "x")
outputs = batch_normalization_train(x, as_x(gamma), as_x(beta), "spatial")
outputs = [*outputs, *theano.grad((outputs[0] ** 3).sum(), [x, gamma, beta])]
values = [random.normal(size=s).astype("float32") for s in ((8, 5, 6, 7), 5, 5)]
f = theano.function([x, gamma, beta], outputs)
g = theano.function([x, gamma, beta], outputs, mode=CPU)
assert {"GpuDnnBatchNorm", "GpuDnnBatchNormGrad"} <= ops(f), ops(f)
for got, expected in zip(f(*values), g(*values)):
    close(got, expected, 1e-3 if np.ndim(expected) == 1 else 1e-4)
normal = values[0].astype("float64")
normal = (normal - normal.mean((0, 2, 3), keepdims=True)) / np.sqrt(
    normal.var((0, 2, 3), keepdims=True) + 1e-4)
close(f(*values)[0], normal * values[1].reshape(1, 5, 1, 1) + values[2].reshape(1, 5, 1, 1))
m, v = T.fvector(), T.fvector()
y = batch_normalization_test(x, as_x(gamma), as_x(beta), as_x(m), as_x(v), "spatial")
inputs = [x, gamma, beta, m, v]
f, g = theano.function(inputs, y), theano.function(inputs, y, mode=CPU)
assert "GpuDnnBatchNormInference" in ops(f), ops(f)
more = [*values, values[1], np.abs(values[2]) + 1]
close(f(*more), g(*more))
"""
    )


def test_softmax():
    run(
        """
x = T.fmatrix()
value = random.normal(size=(20, 30)).astype("float32")
outputs = [T.nnet.softmax(x), theano.grad((T.nnet.softmax(x) ** 2).sum(), x)]
f, g = theano.function([x], outputs), theano.function([x], outputs, mode=CPU)
assert "GpuDnnSoftmax" in ops(f), ops(f)
for got, expected in zip(f(value), g(value)):
    close(got, expected)
"""
    )


def test_cudnn_works_on_libgpuarrays_stream():
    code = """
import ctypes
from synk_theano_compat.cuda import stream_of
from theano.gpuarray.type import get_context
context, stream = get_context(None), ctypes.c_void_p()
assert stream_of(context)
status = dnn._dnn_lib().cudnnGetStream(context.cudnn_handle, ctypes.byref(stream))
assert (status, stream.value) == (0, stream_of(context)), (status, stream.value)
"""
    run(code)


def test_libraries_are_found_without_the_linkers_help():
    """Of LD_LIBRARY_PATH only libgpuarray's own folder stays."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    ours = [folder for folder in folders if glob(os.path.join(folder, "libgpuarray.so*"))]
    theirs = [
        os.path.dirname(one["path"]) for all_ in status()["libraries"].values() for one in all_
    ]
    roots = os.environ.get(PATH_VARIABLE) or os.pathsep.join(
        dict.fromkeys([*theirs, *(os.path.join(os.path.dirname(f), "include") for f in theirs)])
    )
    code = """
from synk_theano_compat._cuda import libraries
assert set(libraries.results) == {"cuda", "nvrtc", "cublas", "nccl"}, libraries.results
assert not libraries.missing, libraries.missing
x = theano.shared(np.eye(64, dtype="float32"))
assert np.allclose(theano.function([], T.dot(x, x))(), np.eye(64))
check(2, 1, 1, 1)
"""
    changes = {"LD_LIBRARY_PATH": ":".join(ours), PATH_VARIABLE: roots}
    run(NUMPY_CONV + code, **changes)


def test_reductions_of_nothing_and_of_float16_are_right():
    code = """
x = T.fmatrix()
made = theano.function([x], [x.sum(axis=0), x.sum(), x.sum(axis=1), abs(x).sum(axis=0), x.mean()])
assert "GpuDnnReduction" in ops(made), ops(made)
for rows in (0, 1, 5):
    value = random.normal(size=(rows, 3)).astype("float32")
    expected = [value.sum(axis=0), value.sum(), value.sum(axis=1), abs(value).sum(axis=0)]
    for got, right in zip(made(value), expected):
        assert got.shape == right.shape and np.allclose(got, right, atol=1e-5), (got, right)
most, product = theano.function([x], x.max(axis=0)), theano.function([x], x.prod(axis=0))
close(most(value), value.max(axis=0))
close(product(value), value.prod(axis=0))
assert most(np.zeros((5, 0), "float32")).shape == (0,)
# Products are Theano's own kernel's, which refuses: cuDNN's would say 0.
for function, kind, said in (
    (most, ValueError, "zero-size array"), (product, NotImplementedError, "input shape is 0")
):
    try:
        function(np.zeros((0, 3), "float32"))
    except kind as error:
        assert said in str(error)
    else:
        raise AssertionError("no error")
h = T.tensor("float16", (False, False))
half = theano.function([h], [h.sum(axis=0), h.max(axis=0), h.sum()])
value = random.normal(size=(7, 3)).astype("float16")
for got, right in zip(half(value), [value.sum(axis=0), value.max(axis=0), value.sum()]):
    assert np.allclose(got, right, rtol=1e-2, atol=1e-2), (got, right)
"""
    run(code)


def test_sums_by_channels_are_right_and_not_cudnns():
    code = """
for shape in ((2, 3, 4, 3, 2), (4, 3, 6), (1, 1, 1, 1), (300, 2, 1, 1), (2, 70, 64, 33)):
    axes = tuple(axis for axis in range(len(shape)) if axis != 1)
    x = T.TensorType("float32", (False,) * len(shape))()
    f = theano.function([x], x.sum(axis=axes))
    assert "GpuCAReduceCuda" in ops(f), ops(f)
    value = random.normal(size=shape).astype("float32")
    for given in (value, value[:, ::-1].copy(), np.zeros((0, *shape[1:]), "float32")):
        right = given.sum(axis=axes, dtype="float64")
        got = f(given)
        assert got.shape == right.shape and got.dtype == np.float32, (got, right)
        assert np.allclose(got, right, rtol=1e-5, atol=1e-4), (shape, got, right)
everything = theano.function([x], x.sum())
assert "GpuDnnReduction" in ops(everything), ops(everything)
x, b = T.ftensor4(), theano.shared(random.normal(size=5).astype("float32"))
value = random.normal(size=(3, 5, 7, 2)).astype("float32")
loss = T.tanh(x + b.dimshuffle("x", 0, "x", "x")).sum()
gradient = theano.function([x], theano.grad(loss, b))
exact = 1 - np.tanh(value + b.get_value()[None, :, None, None]) ** 2
close(gradient(value), exact.sum(axis=(0, 2, 3)))
"""
    run(code)


MANY_OPS = """
from theano.gof.cc import get_module_cache
from theano.sandbox.rng_mrg import MRG_RandomStreams
x, m, i = T.ftensor4(), T.fmatrix(), T.ivector()
w = theano.shared(random.normal(size=(4, 3, 3, 3)).astype("float32"))
out = T.nnet.relu(T.nnet.conv2d(x, w, border_mode=1) + T.arange(4.0).dimshuffle("x", 0, "x", "x"))
out = T.signal.pool.pool_2d(out, (2, 2), ignore_border=True)
out = T.nnet.bn.batch_normalization_train(out, *[T.ones((1, 4, 1, 1))] * 2, axes="spatial")[0]
kept = MRG_RandomStreams(3).binomial(m.shape, p=0.5, dtype="float32") * m
loss = T.nnet.categorical_crossentropy(T.nnet.softmax(kept.dot(kept.T)), i).mean() + out.sum()
results = [loss, *theano.grad(loss, [w, m])]
for reduced in (T.sum, T.prod, T.max, T.min, T.mean, T.var):
    results += [reduced(m, axis=axis) for axis in (None, 0, 1)]
    results += [reduced(m**2), reduced(x, (0, 2))]
results += [T.argmax(m, 1), T.nnet.logsoftmax(m), m[i], m[::-1, 1:], T.join(0, m, m), T.eye(3)]
results += [T.set_subtensor(m[:2], 0), T.inc_subtensor(m[i], 1), T.cumsum(m, 0), T.sort(m, 1)]
results += [T.outer(m[0], m[1]), T.alloc(m[0], 4, m.shape[1]), T.switch(m > 0, m, 0)]
f = theano.function([x, m, i], results)
f(*(np.ones(shape, "float32") for shape in ((2, 3, 4, 4), (5, 5))), np.zeros(5, "int32"))
print(get_module_cache().stats[2])
"""


def test_nothing_is_compiled_a_second_time(tmp_path):
    flags = f"base_compiledir={tmp_path}"
    assert int(run(MANY_OPS, flags).split()[-1]) > 20
    assert int(run(MANY_OPS, flags).split()[-1]) == 0


NO_CONTEXT = """
import ctypes
from synk_theano_compat._cuda.status import cuda_status
assert cuda_status()["devices"]
driver, context = ctypes.CDLL("libcuda.so"), ctypes.c_void_p()
assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
assert not context.value
flags, active = ctypes.c_uint(), ctypes.c_int(7)
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 0
"""


def test_reports_about_cuda_take_no_device_memory():
    subprocess.run([sys.executable, "-c", NO_CONTEXT], timeout=120, check=True)
