"""Our cudnn.h over a cuDNN that answers what a test tells it: which algorithm Theano is given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import synk_theano_compat

COMPILER = shutil.which("g++")
INCLUDE = Path(synk_theano_compat.__file__).with_name("include")
FAKE = Path(__file__).with_name("fake_cudnn.h")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler (g++)")

# The three families as Theano's C code calls them; prints status, algorithm and workspace.
PROGRAM = r"""
#include <cudnn.h>
#include <stdio.h>
const cudnnStatus_t OK = CUDNN_STATUS_SUCCESS, NO = CUDNN_STATUS_NOT_SUPPORTED;
const cudnnMathType_t D = CUDNN_DEFAULT_MATH, T = CUDNN_TENSOR_OP_MATH, F = CUDNN_FMA_MATH;
int main() {
  Tensor tensor = {DIMS, TYPE};
  Tensor other = {4, CUDNN_DATA_DOUBLE};
  Filter filter;
  Conv conv = {T};
  size_t limit = 100;
  (void)tensor; (void)filter; (void)conv; (void)other;
  (void)OK; (void)NO; (void)D; (void)T; (void)F; (void)limit;
  int status = -1, algo = -1, count = -1, math = -1;
  size_t size = 0;
  SETUP;
  CALL;
  printf("%d %d %d %zu %d\n", status, algo, count, size, math);
}
"""
TENSORS = {
    "Forward": "&tensor{a}, &filter{b}, &conv, &other{c}",
    "BackwardData": "&filter{a}, &tensor{b}, &conv, &other{c}",
    "BackwardFilter": "&tensor{a}, &other{b}, &conv, &filter{c}",
}
STEMS = {
    "Forward": ("ConvolutionFwd", "CONVOLUTION_FWD"),
    "BackwardData": ("ConvolutionBwdData", "CONVOLUTION_BWD_DATA"),
    "BackwardFilter": ("ConvolutionBwdFilter", "CONVOLUTION_BWD_FILTER"),
}


def get(name: str, preference: str = "SPECIFY_WORKSPACE_LIMIT") -> str:
    stem, prefix = STEMS[name]
    tensors = TENSORS[name].format(a="", b="", c="")
    return (
        f"cudnn{stem}Algo_t chosen = (cudnn{stem}Algo_t)-1; status = cudnnGetConvolution{name}"
        f"Algorithm(0, {tensors}, CUDNN_{prefix}_{preference}, limit, &chosen); algo = chosen;"
        "math = conv.math"
    )


def time(name: str) -> str:
    stem, _ = STEMS[name]
    tensors = TENSORS[name].format(a=", 0", b=", 0", c=", 0")
    return (
        f"cudnn{stem}AlgoPerf_t choice; status = cudnnFindConvolution{name}AlgorithmEx("
        f"0, {tensors}, 1, &count, &choice, 0, limit);"
        "if (count) { algo = choice.algo; size = choice.memory; math = choice.mathType; }"
    )


@pytest.fixture
def answer(tmp_path: Path):
    def compiled(setup: str, call: str, *, major: int = 9, dims: int = 4, kind: str = "FLOAT"):
        (tmp_path / "cudnn_version.h").write_text(f"#define CUDNN_MAJOR {major}\n")
        (tmp_path / "cudnn.h").write_text(f'#include "{FAKE}"\n')
        text = PROGRAM.replace("SETUP", setup).replace("CALL", call)
        text = text.replace("DIMS", str(dims)).replace("TYPE", f"CUDNN_DATA_{kind}")
        source, program = tmp_path / "program.cpp", tmp_path / "program"
        source.write_text(text)
        flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-std=c++11"]
        subprocess.run(
            [COMPILER, *flags, f"-I{INCLUDE}", f"-I{tmp_path}", source, "-o", program],
            check=True,
            timeout=120,
        )
        done = subprocess.run([program], capture_output=True, text=True, timeout=20, check=True)
        return [int(word) for word in done.stdout.split()]

    return compiled


FAMILIES = pytest.mark.parametrize("name", TENSORS)


# Each is a program to compile, and they are of one pattern.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name != "Forward")) for name in TENSORS],
)
@pytest.mark.parametrize("major", [9, 8, 10])
def test_the_first_that_works_within_the_limit(answer, name, major):
    told = "guesses = {{2, NO, 0, D, 0}, {1, OK, 101, D, 101}, {0, OK, 100, D, 100}}"
    assert answer(told, get(name), major=major)[:2] == [0, 0]


@FAMILIES
@pytest.mark.parametrize("preference, algo", [("PREFER_FASTEST", 1), ("NO_WORKSPACE", 0)])
def test_preferences(answer, name, preference, algo):
    told = "guesses = {{1, OK, 1000, D, 1000}, {0, OK, 0, D, 0}}"
    assert answer(told, get(name, preference))[:2] == [0, algo]


@FAMILIES
def test_none_fits(answer, name):
    assert answer("guesses = {{1, OK, 1000, D, 1000}}", get(name))[:2] == [9, -1]
    assert answer("", get(name))[:2] == [9, -1]


@FAMILIES
def test_the_fastest_that_was_timed(answer, name):
    told = "timings = {{1, NO, 0, D, 0}, {2, OK, 30, D, 30}, {0, OK, 0, D, 0}}"
    assert answer(told, time(name)) == [0, 2, 1, 30, 0]


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("limit, algo, fastest, size", [(5000, 2, 1, 1000), (500, 1, 2, 10)])
def test_times_without_the_loading_of_kernels(answer, name, limit, algo, fastest, size):
    # By the first times 0 is the fastest; and 3 works only when it is tried again.
    told = (
        f"limit = {limit}; times = {{{{3, 5, 4, 0}}, {{2.5, 2, 1, 0.5}}, {{9, 4, 1, 0.5}}}};"
        "timings = {{0, OK, 10, D, 10}, {1, OK, 10, D, 10}, {2, OK, 1000, D, 1000},"
        "{3, OK, 10, D, 10}}"
    )
    assert answer(told, f"{time(name)}; math = (int)choice.time") == [0, algo, 1, size, fastest]


@FAMILIES
def test_workspace_is_that_of_the_mode_in_which_theano_computes(answer, name):
    # Timed with FMA and 10 bytes; Theano sets the default mode, in which it is 60.
    assert answer("timings = {{1, OK, 10, F, 60}}", time(name)) == [0, 1, 1, 60, 0]
    assert answer("timings = {{1, OK, 10, F, 101}, {0, OK, 0, D, 0}}", time(name))[1] == 0


@FAMILIES
def test_half_floats_keep_the_mode_that_was_timed(answer, name):
    told = "timings = {{1, OK, 10, T, 10}}"
    assert answer(told, time(name), kind="HALF") == [0, 1, 1, 10, 1]


@FAMILIES
@pytest.mark.parametrize("told", ["timing_status = NO", "timings = {{2, NO, 0, D, 0}}", ""])
def test_without_a_timing_cudnn_guesses(answer, name, told):
    setup = f"{told}; guesses = {{{{1, OK, 20, D, 20}}}}"
    assert answer(setup, time(name)) == [0, 1, 1, 20, 0]


@FAMILIES
def test_nothing_works(answer, name):
    assert answer("timing_status = NO", time(name))[:3] == [9, -1, 0]


def test_three_dimensions_get_what_theano_does_not_replace(answer):
    told = "timings = {{6, OK, 10, D, 10}, {2, OK, 0, D, 0}, {5, OK, 50, D, 50}}"
    assert answer(told, time("Forward"), dims=5)[1] == 5
    assert answer(told, time("Forward"), dims=4)[1] == 6


def test_recurrent_networks_of_cudnn_8(answer):
    assert answer("", "status = cudnnSetRNNDescriptor()", major=8)[0] == 6


def test_before_cudnn_8_nothing_is_added(answer):
    call = "status = cudnnGetConvolutionForwardAlgorithm()"
    assert answer("", call, major=7)[0] == 0
