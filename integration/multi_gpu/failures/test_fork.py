"""`fork()`: what it takes, prints and refuses; again in one process; the documented programs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from _program import run_program, told_by

ROOT = Path(__file__).resolve().parent.parent.parent.parent

EIGHT = "0,1,2,3,4,5,6,7"
TOLD = ("Synkhronos", "...distribution")
USE = """
def use(n):
    x = T.fmatrix("x")
    s = theano.shared(np.arange(3, dtype="float32"), name="s")
    f = synk.function([x], [(x.sum(), "sum"), (x * 2, "gather")], updates=[(s, s + 1)])
    total, doubled = f(np.ones((2 * n + 1, 3), "float32"))
    assert total == 3 * (2 * n + 1), total
    assert doubled.shape == (2 * n + 1, 3) and (doubled == 2).all()
    synk.all_reduce(s, op="sum")
    assert (synk.gather(s) == n * (np.arange(3) + 1.0)).all()
    return type(s).__name__
"""
# The devices that a process has open, without asking the driver, which would open one.
OPEN = """
def open_devices():
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return sorted({name for name in names if name.startswith("/dev/nvidia")})
"""


def test_a_documented_program_prints_the_documented_lines(device_set):
    """It calls fork() without arguments: those of the set are put in their place."""
    code = f"""
import functools, json, os, runpy
import theano
import synkhronos as synk
synk.fork = functools.partial(synk.fork, **json.loads(os.environ["SYNK_FORK"]))
runpy.run_path({str(ROOT / "examples/intro.py")!r}, run_name="__main__")
"""
    ended = run_program(device_set, preamble="")(code)
    assert ended.status == 0, str(ended)
    lines = ended.out.splitlines()
    told = [line for line in lines if line.startswith(TOLD)]
    assert told[0].startswith("Synkhronos attempting to use "), str(ended)
    if device_set.devices:
        assert ", ".join(device_set.devices) in told[0]
        assert any("through host memory" in line for line in told) == (device_set.ranks > 1)
    else:
        device = "GPU" if device_set.kind == "cuda" else "CPU core"
        assert re.match(rf".* use {device_set.ranks} .*{device}s?\.\.\.$", told[0]), told[0]
        assert len(told) == 4, str(ended)
    assert any("master rank: 0" in line for line in told)
    expected = (ROOT / "examples/intro.txt").read_text(encoding="utf-8").splitlines()
    expected = [line for line in expected if not line.startswith(TOLD)]
    assert [line for line in lines if line not in told] == expected, str(ended)


def test_fork_close_fork_in_one_process(device_set):
    told = told_by(device_set, USE)("""
kinds = []
# A process keeps the device that it has: only where all ranks have the same may it change places.
is_one = not FORK.get("use_gpu") or len(set(FORK.get("devices", []))) == 1
for master_rank in (0, N - 1 if is_one else 0, 0):
    assert fork(master_rank=master_rank) == N
    kinds.append(use(N))
    synk.close()
    left = len(workers())
fork()
twice = attempt(fork)
use(N)
tell(kinds=kinds, left=left, twice=twice)
""")
    assert len(set(told["kinds"])) == 1
    assert told["left"] == 0
    assert told["twice"]["error"] == "AlreadyForked"


def test_a_device_that_is_not_there_is_refused_with_a_cure(device_set):
    name = {"cpu": "cuda0", "cuda": "cuda99", "opencl": "opencl9:9"}[device_set.kind]
    visible = "" if device_set.kind == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES", EIGHT)
    told = told_by(device_set, CUDA_VISIBLE_DEVICES=visible)(f"""
import subprocess
def start():
    synk.fork(devices=[{name!r}], verbose=False)
    synk.distribute()
result = attempt(start)
tell(result=result, left=len(workers()))
""")
    assert told["result"]["error"] == "StartError", told
    assert name in told["result"]["text"] or "GPU" in told["result"]["text"], told
    assert told["left"] == 0


def test_the_master_opens_no_device_before_fork(device_set):
    """A CUDA context in the master, before its time, would be on the wrong device."""
    if device_set.kind != "cuda":
        pytest.skip("there is no CUDA device to be opened")
    told = told_by(device_set, USE + OPEN)("""
before = open_devices()
fork()
use(N)
tell(before=before, after=open_devices())
""")
    assert not [name for name in told["before"] if re.search(r"nvidia\d", name)], told
    assert told["after"], "this way of looking finds devices that are open"


def test_a_device_initialized_by_the_user(device_set):
    if device_set.kind == "cpu":
        pytest.skip("no device")
    first = device_set.devices[0] if device_set.devices else "cuda0"
    told = told_by(device_set, USE)(f"""
import theano.gpuarray
theano.gpuarray.use({first!r})
early = theano.shared(np.ones(3, "float32"), name="early")
result = attempt(fork)
if result["error"] is None:
    use(N)
    synk.all_reduce(early, op="sum")
    result["early"] = early.get_value().tolist()
tell(result=result)
""")
    result = told["result"]
    if result["error"] is None:
        assert result["early"] == [device_set.ranks] * 3
    else:
        assert result["error"] == "StartError", result
        assert first in result["text"], result


# Far more than float32's rounding of these sums, far less than TF32's.
FULL = 2e-5


@pytest.mark.parametrize("precision", ["default", "float32", "tf32"])
def test_products_have_the_precision_of_the_setting_in_all_ranks(device_set, precision):
    if device_set.kind != "cuda":
        pytest.skip("no such setting")
    told = told_by(device_set, NVIDIA_TF32_OVERRIDE="", SYNKHRONOS_PRECISION="")(f"""
import theano.gpuarray.dnn
fork(precision={precision!r}, graphs="always")
rng = np.random.RandomState(1)
images = rng.standard_normal((4 * N, 64, 14, 14)).astype("float32")
filters = rng.standard_normal((128, 64, 1, 1)).astype("float32")
x, f = T.ftensor4("x"), theano.shared(filters, name="f")
w = theano.shared(rng.standard_normal((64 * 14 * 14, 256)).astype("float32"), name="w")
outputs = [(T.nnet.conv2d(x, f), "gather"), (T.dot(x.flatten(2), w), "gather")]
both = synk.function([x], outputs, name="both")
exact = [np.einsum("nchw,kc->nkhw", images, filters[:, :, 0, 0].astype("float64")),
         images.reshape(4 * N, -1).astype("float64").dot(w.get_value())]
errors = []
for _ in range(6):
    found = both(images)
    errors.append([[float(np.linalg.norm(a - b) / np.linalg.norm(b))
                    for a, b in zip(np.split(one, N), np.split(other, N))]
                   for one, other in zip(found, exact)])
stats = synk.stats()
tell(errors=errors, graph=stats["both"].graph, precision=stats.precision)
""")
    assert told["precision"] == precision
    assert told["graph"] == "replayed", told
    for convolution, product in told["errors"]:
        assert all(error < 2e-3 for error in convolution + product), told
        if precision == "float32":
            assert all(error < FULL for error in convolution), told
        if precision == "tf32":
            assert all(error > FULL for error in product), told
        else:
            assert all(error < FULL for error in product), told


def test_full_precision_that_comes_too_late_is_refused_with_a_cure(device_set):
    if device_set.kind != "cuda":
        pytest.skip("no such setting")
    first = device_set.devices[0] if device_set.devices else "cuda0"
    told = told_by(device_set, NVIDIA_TF32_OVERRIDE="")(f"""
import theano.gpuarray
theano.gpuarray.use({first!r})
tell(late=attempt(fork, precision="float32"))
synk.close()
os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
tell(excluded=attempt(fork, precision="tf32"))
""")
    assert told["late"]["error"] == "StartError", told
    assert "before the program starts" in told["late"]["text"], told
    assert told["excluded"]["error"] == "InputValueError", told
