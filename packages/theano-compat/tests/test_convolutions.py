"""The changed C code of Theano's convolutions, over a cuDNN and libgpuarray that count calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_convolution.h")

SECTIONS = """
import json
import theano.gpuarray
from theano.gpuarray import dnn
op = getattr(dnn, {name!r})()
print(json.dumps([op.code_sections, op.func_codes]))
"""
PROGRAM = r"""
#include "%(fake)s"
#include <cstring>
#define APPLY_SPECIFIC(name) name##_node
#define FAIL return
struct PARAMS_TYPE {
  %(algo)s conv_algo;
  int num_groups;
  bool inplace, choose_algo, choose_once, choose_time;
  void *handle;
};
static PARAMS_TYPE params = {(%(algo)s)0, 1, false, true, false, true, nullptr};
static PARAMS_TYPE *PARAMS = &params;
%(support_code)s
struct Node {
  %(support_code_struct)s
  Node() { %(init_code_struct)s }
};
int main() {
  Node node;
  PyGpuContextObject context = {&context};
  Descriptor conv = {{0, 0}};
  auto call = [&](size_t images, size_t address, int pad) {
    auto array = [&](size_t a, size_t b, size_t side, size_t address) -> PyGpuArrayObject {
      ssize_t row = 4 * side, plane = row * side, whole = plane * b;
      return {{GA_FLOAT, 0}, 4, {a, b, side, side}, {whole, plane, row, 4}, &context, address};
    };
    PyGpuArrayObject x = array(images, 3, 9, address), w = array(8, 3, 3, 32);
    PyGpuArrayObject y = array(images, 8, 7, 64);
    PyGpuArrayObject *px = &x, *pw = &w, *py = &y;
    (void)px; (void)pw; (void)py;
    forward_output = &y;
    conv.pad[0] = pad;
    used = -1;
    failed = 0;
    int status = node.%(call)s;
    printf("%%d %%d %%d %%d %%d\n", status, used, memory_asked, device_asked, timed);
  };
  call(4, 16, 0);   // chosen
  call(4, 16, 0);   // nothing is asked
  call(4, 20, 0);   // not aligned to 16 bytes: another case
  call(5, 16, 0);
  call(4, 16, 0);   // known, but not the last one
  call(4, 16, 1);   // another convolution
  fail_timing = 1;
  call(6, 16, 0);   // fails
  fail_timing = 0;
  call(4, 16, 1);
  call(5, 16, 0);
  call(5, 16, 0);
}
"""
CALLS = [
    ("GpuDnnConv", "Fwd", "conv_fwd_node(&x, &w, &y, &conv, 1, 0, &py, PARAMS)"),
    ("GpuDnnConvGradI", "BwdData", "conv_gi_node(&w, &y, &x, &conv, 1, 0, &px, PARAMS)"),
    ("GpuDnnConvGradW", "BwdFilter", "conv_gw_node(&x, &y, &w, &conv, 1, 0, &pw, PARAMS)"),
]

# Status, algorithm (the remainder of the number of images by 3), and how often memory and device
# were asked for and algorithms were timed so far.
EXPECTED = [
    (0, 1, 1, 1, 1),
    (0, 1, 1, 1, 1),
    (0, 1, 2, 2, 2),
    (0, 2, 3, 3, 3),
    (0, 1, 3, 4, 3),
    (0, 1, 4, 5, 4),
    (1, -1, 5, 6, 5),
    (0, 1, 5, 7, 5),
    (0, 2, 5, 8, 5),
    (0, 2, 5, 8, 5),
]
# Without the change: the same results, and memory and device are asked for in every call.
PLAIN = [(*row[:2], call, call, row[4]) for call, row in enumerate(EXPECTED, 1)]


@pytest.mark.parametrize(("name", "stem", "call"), CALLS, ids=[name for name, *_ in CALLS])
def test_an_algorithm_is_chosen_once_for_each_case(run, numbers, name, stem, call):
    compiled = []
    for skip, expected in (("", EXPECTED), ("G9", PLAIN)):
        sections, codes = json.loads(run(SECTIONS.format(name=name), skip=skip).stdout)
        words = {"fake": FAKE, "algo": f"cudnnConvolution{stem}Algo_t", "call": call}
        assert numbers(PROGRAM % {**sections, **words}, "-w") == expected
        compiled.append(codes)
    assert compiled[0] != compiled[1]  # so that the module is compiled anew


LIBRARY = """
static void *kept;
extern "C" int cudnnSetStream(void *handle, void *stream) { kept = stream; return handle != 0; }
extern "C" void *kept_stream() { return kept; }
"""
STREAM = """
import contextlib, ctypes
import theano.gpuarray
from theano.gpuarray import dnn
from synk_theano_compat import cuda as stream
from synk_theano_compat._patches.gpu import convolutions
library = ctypes.CDLL({library!r})
library.kept_stream.restype = ctypes.c_void_p
stream.stream_of, context = (lambda _: 0x7F1234567890), contextlib.nullcontext()
dnn._dnn_lib = lambda: library
for status in (0, 1):
    dnn._make_handle = lambda _: ctypes.c_void_p(status)
    convolutions.one_stream()
    try:
        assert dnn._make_handle(context).value is None and status == 0
    except RuntimeError as error:
        assert "cuDNN's status 1" in str(error) and status == 1
    assert library.kept_stream() == 0x7F1234567890
"""


def test_cudnn_is_given_the_whole_address_of_the_stream(forked, build, tmp_path: Path):
    build(tmp_path / "libfake.so", LIBRARY)
    forked(STREAM.format(library=str(tmp_path / "libfake.so")))
