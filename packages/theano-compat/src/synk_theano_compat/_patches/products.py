"""P5, P8, P9, P11: products that Theano computes wrongly here, or not at all."""

from __future__ import annotations

from typing import Any

from .rewrite import replaced, wrap

_UNIT = "unit |= ((S{m}[1] == type_size || N{m}[1]==1) ? 0x0 : "
_EMPTY = "(N{m}[0] == 0 || N{m}[1] == 0)"


def empty_gemm() -> str:
    """P5: let Gemm, Dot22 and Dot22Scalar take matrices without elements.

    Since NumPy 1.23 the strides of an empty array may be 0, so that "some matrix has no unit
    stride", and BLAS refuses a leading dimension of 0. Without elements any stride is right. The
    gradient of a process without rows of a batch has such a Gemm.
    """
    from theano.tensor.blas import GemmRelated

    encode: str = GemmRelated.encode_strides_in_unit
    compute: str = GemmRelated.compute_strides
    for matrix in "xyz":
        empty = _EMPTY.format(m=matrix)
        old = _UNIT.format(m=matrix)
        encode = replaced(encode, old, old.replace("((", f"(({empty} || ", 1))
        for axis in "01":
            condition = f"s{matrix}_{axis} = (N{matrix}[{axis}] > 1)"
            compute = replaced(compute, condition, condition.replace("> 1)", f"> 1 && !{empty})"))
    GemmRelated.encode_strides_in_unit = encode
    GemmRelated.compute_strides = compute

    @wrap(GemmRelated, "build_gemm_version")
    def version(plain: Any, self: Any) -> tuple[Any, ...]:
        return (*plain(self), 1)

    return "GemmRelated"


def batched_dot() -> str:
    """P8: compute BatchedDot in Python when Theano is not linked to a BLAS.

    Theano's substitute for BLAS on NumPy's C API declares ``sgemm_`` twice, with C++ and with C
    linkage; a module that only BatchedDot uses then lacks the symbol and does not load.
    """
    from theano import config
    from theano.gof.utils import MethodNotDefined
    from theano.tensor.blas import BatchedDot

    @wrap(BatchedDot, "c_code")
    def c_code(plain: Any, self: Any, *arguments: Any) -> Any:
        if not config.blas.ldflags:
            raise MethodNotDefined("c_code", type(self), type(self).__name__)
        return plain(self, *arguments)

    return "BatchedDot.c_code"


def fresh_gemv() -> str:
    """P9: set the result of Gemv to zero before it is accumulated into.

    Theano compiles a test program to see whether this BLAS multiplies uninitialised memory (perhaps
    NaN) by ``beta = 0``. The program lacks a parenthesis: it costs a run of the compiler in each
    process and always answers no.
    """
    from theano.tensor.blas_c import check_force_gemv_init

    check_force_gemv_init._force_init_beta = True
    return "check_force_gemv_init"


def prod_by_scalar() -> str:
    """P11: take a scalar out of a product only where the result is right.

    Theano replaces ``prod(c * x, axis)`` by ``c ** x.size * prod(x, axis)`` for any axes, which
    gives wrong numbers unless the product is over all of them (``axis=None``). With float32 the
    power is a float64, which does not fit: Theano then logs an error for each such product.
    """
    from theano.tensor.elemwise import Prod
    from theano.tensor.opt import local_sum_prod_mul_by_scalar

    @wrap(local_sum_prod_mul_by_scalar, "transform")
    def guarded(transform: Any, node: Any) -> Any:
        if not isinstance(node.op, Prod):
            return transform(node)
        replacement = transform(node) if node.op.axis is None else None
        if replacement and replacement[0].type != node.outputs[0].type:
            return None
        return replacement

    return "local_sum_prod_mul_by_scalar"
