"""Our cudnn.h over a cuDNN that answers what a test tells it: which algorithm Theano is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import synk_theano_compat

INCLUDE = Path(synk_theano_compat.__file__).with_name("include")
FAKE = Path(__file__).with_name("fake_cudnn.h")

# The families as Theano's C code calls them.
PROGRAM = r"""
#include <cudnn.h>
#include <stdio.h>
const cudnnStatus_t OK = CUDNN_STATUS_SUCCESS, NO = CUDNN_STATUS_NOT_SUPPORTED;
const cudnnMathType_t D = CUDNN_DEFAULT_MATH, T = CUDNN_TENSOR_OP_MATH, F = CUDNN_FMA_MATH;
Tensor tensor, other = {4, CUDNN_DATA_DOUBLE};
Filter filter;
Conv conv;
size_t limit, size;
int status, algo, count, math, milliseconds;
static void begin() {
  guesses.clear();
  timings.clear();
  times.clear();
  timing_status = OK;
  timed = size = 0;
  tensor = {4, CUDNN_DATA_FLOAT};
  conv = {T};
  limit = 100;
  status = algo = count = math = milliseconds = -1;
}
int main() {
"""
ONE = r"""
  begin();
  %s;
  { %s; }
  printf("%%d %%d %%d %%zu %%d %%d\n", status, algo, count, size, math, milliseconds);
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


def get(name: str, preference: str) -> str:
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
        "if (count) { algo = choice.algo; size = choice.memory; math = choice.mathType;"
        "milliseconds = (int)choice.time; }"
    )


LIMIT = "SPECIFY_WORKSPACE_LIMIT"
FIRST = "guesses = {{2, NO, 0, D, 0}, {1, OK, 101, D, 101}, {0, OK, 100, D, 100}}"
TWO = "guesses = {{1, OK, 1000, D, 1000}, {0, OK, 0, D, 0}}"
GUESS = "; guesses = {{1, OK, 20, D, 20}}"
# By the first times 0 is the fastest; and 3 works only when it is tried again.
LOADING = (
    "times = {{3, 5, 4, 0}, {2.5, 2, 1, 0.5}, {9, 4, 1, 0.5}}; timings = {{0, OK, 10, D, 10},"
    "{1, OK, 10, D, 10}, {2, OK, 1000, D, 1000}, {3, OK, 10, D, 10}}; limit = "
)
# What cuDNN answers; Theano's preference, or None where it has algorithms timed; and what it gets:
# status, algorithm, number of results, workspace, mode and time, as far as they matter.
CASES = [
    # The first that works within the limit.
    (FIRST, LIMIT, (0, 0)),
    (TWO, "PREFER_FASTEST", (0, 1)),
    (TWO, "NO_WORKSPACE", (0, 0)),
    ("guesses = {{1, OK, 1000, D, 1000}}", LIMIT, (9, -1)),
    ("", LIMIT, (9, -1)),
    # The fastest that was timed, without the loading of kernels.
    ("timings = {{1, NO, 0, D, 0}, {2, OK, 30, D, 30}, {0, OK, 0, D, 0}}", None, (0, 2, 1, 30, 0)),
    (LOADING + "5000", None, (0, 2, 1, 1000, 0, 1)),
    (LOADING + "500", None, (0, 1, 1, 10, 0, 2)),
    # Timed with FMA and 10 bytes; Theano sets the default mode, in which it is more.
    ("timings = {{1, OK, 10, F, 60}}", None, (0, 1, 1, 60, 0)),
    ("timings = {{1, OK, 10, F, 101}, {0, OK, 0, D, 0}}", None, (0, 0)),
    # Half floats keep the mode that was timed.
    ("timings = {{1, OK, 10, T, 10}}; tensor.type = CUDNN_DATA_HALF", None, (0, 1, 1, 10, 1)),
    # Without a timing cuDNN guesses.
    ("timing_status = NO" + GUESS, None, (0, 1, 1, 20, 0)),
    ("timings = {{2, NO, 0, D, 0}}" + GUESS, None, (0, 1, 1, 20, 0)),
    (GUESS, None, (0, 1, 1, 20, 0)),
    ("timing_status = NO", None, (9, -1, 0)),
]
# What Theano does not replace in three dimensions.
SIX = "timings = {{6, OK, 10, D, 10}, {2, OK, 0, D, 0}, {5, OK, 50, D, 50}}; tensor.dims = "
FORWARD = [*CASES, (SIX + "5", None, (0, 5)), (SIX + "4", None, (0, 6))]


@pytest.fixture
def answers(numbers, tmp_path: Path):
    """Compile calls, each with what cuDNN answers; return what they print."""

    def compiled(calls: list[tuple[str, str]], major: int) -> list[tuple[int, ...]]:
        (tmp_path / "cudnn_version.h").write_text(f"#define CUDNN_MAJOR {major}\n")
        (tmp_path / "cudnn.h").write_text(f'#include "{FAKE}"\n')
        source = PROGRAM + "".join(ONE % call for call in calls) + "}\n"
        flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
        return numbers(source, *flags, f"-I{INCLUDE}", f"-I{tmp_path}")

    return compiled


@pytest.mark.parametrize(
    ("name", "major"), [("Forward", 9), ("BackwardData", 8), ("BackwardFilter", 10)]
)
def test_the_header_for_theano(answers, name: str, major: int):
    cases = FORWARD if name == "Forward" else CASES
    calls = [(told, get(name, asked) if asked else time(name)) for told, asked, _ in cases]
    found = answers(calls, major)
    for (told, asked, expected), given in zip(cases, found):
        assert given[: len(expected)] == expected, (told, asked)
    assert len(found) == len(cases)


def test_recurrent_networks_of_cudnn_8(answers):
    assert answers([("", "status = cudnnSetRNNDescriptor()")], 8)[0][0] == 6


def test_before_cudnn_8_nothing_is_added(answers):
    assert answers([("", "status = cudnnGetConvolutionForwardAlgorithm()")], 7)[0][0] == 0
