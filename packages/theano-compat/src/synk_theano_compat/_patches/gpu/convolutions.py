"""G8, G9: cuDNN in Theano: on libgpuarray's stream, and with less work for the host."""

from __future__ import annotations

import ctypes
from typing import Any

from synk_theano_compat._patches.rewrite import in_c_code_of, wrap

CASE = """\
#include <string.h>
#define CASE_WORDS 56

/* Write what a choice of the algorithm depends on: the same as dnn_conv_shape, as numbers. */
static bool conv_case(long long *words, PyGpuArrayObject *input, PyGpuArrayObject *filter,
                      PyGpuArrayObject *output, cudnnConvolutionDescriptor_t desc, int groups) {
  PyGpuArrayObject *arrays[3] = {input, filter, output};
  int nd = 0, numbers[15] = {0};
  cudnnConvolutionMode_t mode;
  cudnnDataType_t type;
  memset(words, 0, CASE_WORDS * sizeof(*words));
  if (cudnnGetConvolutionNdDescriptor(desc, 5, &nd, numbers, numbers + 5, numbers + 10, &mode,
                                      &type) != CUDNN_STATUS_SUCCESS)
    return false;
  *words++ = (long long)(size_t)input->context;
  *words++ = input->ga.typecode;
  *words++ = groups;
  *words++ = nd;
  *words++ = mode;
  *words++ = type;
  *words++ = all_aligned(type, PyGpuArray_DEV_DATA(input), PyGpuArray_DEV_DATA(output),
                         PyGpuArray_DEV_DATA(filter));
  for (int i = 0; i < 15; i++)
    *words++ = numbers[i];
  for (int a = 0; a < 3; a++)
    for (unsigned int i = 0; i < 5; i++, words += 2)
      if (i < PyGpuArray_NDIM(arrays[a])) {
        words[0] = PyGpuArray_DIM(arrays[a], i);
        words[1] = PyGpuArray_STRIDE(arrays[a], i);
      }
  return true;
}

"""
"""7 numbers, 15 of the descriptor, and dimension and stride in 5 axes of 3 arrays: 52 words."""

AFTER_CASE = "static void dnn_conv_update_cache("

MEMORY = """\
  size_t maxfree = c_get_largest_free_block_size(c);
  if (PyErr_Occurred()) {
    cuda_exit(c->ctx);
    return 1;
  }
"""
NO_MEMORY_YET = """\
  size_t maxfree = 0;
  long long this_case[CASE_WORDS];
  bool has_case = false;
"""
CHOOSE = "      if (params->choose_time) {\n        int count;\n"
LOOK_UP = "    if (!reuse_algo) {\n      char pci_id[16];\n"
REMEMBER = """\
    if (!reuse_algo)
      has_case = conv_case(this_case, {input}, {filter}, {output}, desc, groups);
    if (has_case && has_choice && memcmp(this_case, chosen_for, sizeof(this_case)) == 0) {{
      use_cached = 1;  /* prev_algo is the choice */
    }} else if (!reuse_algo) {{
      has_choice = 0;
      char pci_id[16];
"""
SAVE = "      // save for next time/cache\n"
SAVE_CASE = """\
      has_choice = has_case;
      memcpy(chosen_for, this_case, sizeof(this_case));
"""

OPS = {
    "GpuDnnConv": ("input", "kerns", "*output"),
    "GpuDnnConvGradI": ("*input", "kerns", "output"),
    "GpuDnnConvGradW": ("input", "*kerns", "output"),
}
"""The ops, and the names in their C code of input, filter and output."""


def one_stream() -> str:
    """G8: let cuDNN work on libgpuarray's stream, not on CUDA's default stream.

    Each change between the two lets the device wait, and prevents the capture of a function.
    """
    from theano.gpuarray import dnn

    from synk_theano_compat.cuda import stream_of

    @wrap(dnn, "_make_handle")
    def made(plain: Any, context: Any) -> Any:
        handle = plain(context)
        stream = ctypes.c_void_p(stream_of(context))
        with context:
            status = dnn._dnn_lib().cudnnSetStream(handle, stream)
        if status:
            raise RuntimeError(f"cudnnSetStream failed with cuDNN's status {status}")
        return handle

    return "_make_handle"


def remembered_choices() -> str:
    """G9: ask for free memory only to choose an algorithm; remember the choice by numbers.

    Theano asks the driver in each call, and looks up the choice by a text of shapes, strides and
    device: 4 to 15 us of host time in each of some 160 calls in a step of ResNet-50.
    """
    from theano.gpuarray import dnn

    for name, arrays in OPS.items():
        in_c_code_of(getattr(dnn, name), edits(*arrays))
    return ", ".join(OPS)


def edits(source: str, filters: str, output: str) -> list[tuple[str, str, str]]:
    """Return the changes of an op's C code: section, old and new text; arrays as C expressions."""
    struct = "support_code_struct"
    remember = REMEMBER.format(input=source, filter=filters, output=output)
    fields = "int     has_choice;\nlong long chosen_for[CASE_WORDS];\n"
    asked = "".join(f"    {line}\n" for line in MEMORY.splitlines())
    return [
        ("support_code", AFTER_CASE, CASE + AFTER_CASE),
        ("init_code_struct", "reuse_algo = 0;\n", "reuse_algo = 0;\nhas_choice = 0;\n"),
        (struct, "int     reuse_algo;\n", "int     reuse_algo;\n" + fields),
        (struct, MEMORY, NO_MEMORY_YET),
        (struct, LOOK_UP, remember),
        (struct, CHOOSE, asked.replace("size_t maxfree", "maxfree") + CHOOSE),
        (struct, SAVE, SAVE_CASE + SAVE),
    ]
