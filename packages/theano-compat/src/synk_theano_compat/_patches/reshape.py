"""P12: ``reshape`` and ``flatten`` of a batch without rows, where one length is given as -1.

NumPy refuses ``reshape(x, (0, -1))`` because any number would do. In a Theano graph the zero is a
length that happens to be 0 in this call, such as the number of rows, and other calls of the same
function define the number: ``x.flatten(2)`` of shape (n, 3, 4) is (n, 12) for any n.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .rewrite import rewrite, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

# `complete` in C. `%%` because Theano formats the code that this is inserted into.
_C_CODE = """
if (PyArray_SIZE(%(x)s) == 0) {
    int free_axis = -1, free_axes = 0, zeros = 0;
    npy_intp known = 1, size = 1;
    for (int ii = 0; ii < newshape.len; ++ii) {
        if (new_dims[ii] == -1) { free_axis = ii; ++free_axes; }
        else if (new_dims[ii] == 0) --zeros;
        else known *= new_dims[ii];
    }
    if (free_axes == 1 && zeros != 0) {
        for (int ii = 0; ii < PyArray_NDIM(%(x)s); ++ii) {
            if (PyArray_DIMS(%(x)s)[ii] == 0) ++zeros;
            else size *= PyArray_DIMS(%(x)s)[ii];
        }
        if (zeros == 0 && size %% known == 0) new_dims[free_axis] = size / known;
    }
}
"""
_NEW_ARRAY = "Py_XDECREF(%(z)s);"


def complete(lengths: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the requested shape of an array, with -1 replaced where another length is 0.

    NumPy cannot infer it there. The number makes the products of both shapes without their zeros
    equal; -1 stays if that is not a whole number or the numbers of zeros differ.
    """
    result = [int(length) for length in wanted]
    if result.count(-1) == 1 and 0 in result and result.count(0) == list(lengths).count(0):
        size, known = math.prod(filter(None, lengths)), -math.prod(filter(None, result))
        if size % known == 0:
            result[result.index(-1)] = size // known
    return result


def empty_reshape() -> str:
    """P12: patch ``Reshape``: its Python and C implementations, and its inferred shape."""
    from theano.tensor.basic import Reshape

    perform = Reshape.perform

    def completed_perform(self: Any, node: Any, inp: Any, out_: Any, params: Any) -> None:
        x, wanted = inp
        shape = wanted if x.size else complete(x.shape, wanted)
        perform(self, node, (x, shape), out_, params)

    @wrap(Reshape, "infer_shape")
    def infer_shape(plain: Any, self: Any, node: Any, ishapes: Any) -> Any:
        return _inferred(node, ishapes[0], plain(self, node, ishapes))

    @wrap(Reshape, "c_code_cache_version")
    def version(plain: Any, self: Any) -> tuple[Any, ...]:
        return (*plain(self), 1)

    rewrite(Reshape.c_code, _NEW_ARRAY, _C_CODE + _NEW_ARRAY)
    Reshape.perform = completed_perform
    return "Reshape"


def _inferred(node: Any, lengths: Any, inferred: Any) -> Any:
    """Return the symbolic shape of a Reshape: Theano's own, except for a -1 beside a zero."""
    from theano.tensor import basic

    wanted = node.inputs[1]
    constant = isinstance(wanted, basic.TensorConstant)
    if len(lengths) == 0 or node.op.ndim < 2 or (constant and not {0, -1} <= set(wanted.data)):
        return inferred
    parts = list(wanted.data) if constant else [wanted[i] for i in range(node.op.ndim)]
    # Theano's constant folding removes what is known.
    known = -basic.mul(*[basic.switch(basic.eq(part, 0), 1, part) for part in parts])
    size = basic.mul(*[basic.maximum(length, 1) for length in lengths])
    rest = size // basic.maximum(known, 1)
    empty = basic.eq(basic.mul(*parts), 0)
    return [
        tuple(
            basic.switch(basic.and_(empty, basic.eq(part, -1)), rest, old)
            for part, old in zip(parts, inferred[0])
        )
    ]
