"""G6: sums and maxima by cuDNN that are right.

cuDNN's reductions refuse arrays without elements, which Theano passes on; and those of float16 read
rows of an odd length at addresses that the device forbids (cuDNN 9.14 on Hopper), after which
the whole process can use its GPU no more. Theano's own kernels do what is left to them here.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

FIRST_USE = "  if (c_set_tensorNd(input, APPLY_SPECIFIC(input)) != 0)\n    return 1;\n"

OF_NOTHING = """\
  if (PyGpuArray_SIZE(input) == 0) {
    p = 0;
    rsz = 1;
    for (unsigned int i = 0; i < PyGpuArray_NDIM(input); i++) {
      if (params->c_axis & (1U << i))
        continue;
      dims[p] = PyGpuArray_DIM(input, i);
      rsz *= dims[p++];
    }
    if (rsz != 0 && (indices != NULL || (params->red_op != CUDNN_REDUCE_TENSOR_ADD &&
                                         params->red_op != CUDNN_REDUCE_TENSOR_NORM1 &&
                                         params->red_op != CUDNN_REDUCE_TENSOR_NORM2))) {
      PyErr_SetString(PyExc_ValueError, "zero-size array to a reduction which has no identity");
      return 1;
    }
    if (theano_prep_output(output, p, dims, input->ga.typecode, GA_C_ORDER, c) != 0)
      return 1;
    if (indices != NULL && theano_prep_output(indices, p, dims, GA_UINT, GA_C_ORDER, c) != 0)
      return 1;
    if (GpuArray_memset(&(*output)->ga, 0) != GA_NO_ERROR) {
      PyErr_SetString(PyExc_RuntimeError, "could not fill the sum of nothing with zeros");
      return 1;
    }
    return 0;
  }
"""


def sound_reductions() -> str:
    """G6: leave to cuDNN only the reductions that it does right; the sum of nothing is 0.

    Raises:
        ValueError: Theano's C code is not what this was written for.
    """
    from theano.gpuarray import dnn
    from theano.scalar.basic import Mul

    initialise = dnn.GpuDnnReduction.__init__

    @functools.wraps(initialise)
    def patched(self: Any, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        # The version of the compiled module is that of the files; what is compiled, the sections.
        *before, code = self.func_codes
        self.func_codes = [*before, with_sum_of_nothing(code)]
        section = self.code_sections["support_code_struct"]
        self.code_sections["support_code_struct"] = with_sum_of_nothing(section)

    dnn.GpuDnnReduction.__init__ = patched

    def wanted(node: Any) -> bool:
        variables = (*node.inputs, *node.outputs)
        if any(getattr(variable, "dtype", "") == "float16" for variable in variables):
            return False
        # The product of nothing is 1, not 0; Theano's kernel refuses it.
        return not isinstance(getattr(node.op, "scalar_op", None), Mul)

    lowered = [dnn.local_dnn_reduction, dnn.local_cudnn_maxandargmax]
    for optimizer in lowered:
        optimizer.transform = _only(wanted, optimizer.transform)
    return ", ".join(["GpuDnnReduction", *(optimizer.__name__ for optimizer in lowered)])


def with_sum_of_nothing(code: str) -> str:
    """The C code of the reduction, with arrays without elements in mind.

    Raises:
        ValueError: it is not the code that this was written for.
    """
    if FIRST_USE not in code:
        raise ValueError("dnn_redux.c of Theano 1.0.5 was expected")
    return code.replace(FIRST_USE, OF_NOTHING + FIRST_USE, 1)


def _only(wanted: Callable[[Any], bool], transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(transform)
    def checked(node: Any) -> Any:
        return transform(node) if wanted(node) else None

    return checked
