"""G12, G14: sums over all axes but the second, as in the gradient of a convolution's bias; and the
C code of Theano's own reductions."""

from __future__ import annotations

import functools
from typing import Any

from synk_theano_compat._patches.rewrite import rewrite, wrap


def quick_channel_sums() -> str:
    """G12: add up each channel in two steps, by Theano's own kernels instead of cuDNN's.

    cuDNN adds up 16 x 64 x 224 x 224 floats by channels in 1.13 ms on an H100, a fifth of a step of
    VGG-16, and these kernels in 0.10 ms. The first step adds up each image's channels, one block of
    threads for each, the second the images.
    """
    from theano.gpuarray import dnn

    @wrap(dnn.local_dnn_reduction, "transform")
    def transform(plain: Any, node: Any) -> Any:
        if getattr(node.inputs[0].tag, "by_channels", False):
            return None  # one of the two steps: it stays Theano's
        lowered = plain(node)
        return _in_two_steps(node) if lowered and _is_channel_sum(node) else lowered

    return "local_dnn_reduction"


def _is_channel_sum(node: Any) -> bool:
    from theano.scalar.basic import Add

    op, x = node.op, node.inputs[0]
    others = tuple(axis for axis in range(x.ndim) if axis != 1)
    return (
        isinstance(op.scalar_op, Add)
        and op.pre_scalar_op is None
        and x.ndim > 2
        and op.axis is not None
        and tuple(op.axis) == others
        and not x.broadcastable[1]
    )


def _in_two_steps(node: Any) -> list[Any]:
    from theano import tensor
    from theano.gpuarray.basic_ops import GpuReshape

    op, x = node.op, node.inputs[0]
    images, channels, *inner = (x.shape[axis] for axis in range(x.ndim))
    size = functools.reduce(lambda a, b: a * b, inner)
    rows = GpuReshape(2)(x, tensor.stack([images * channels, size]))
    types = {"dtype": op.dtype, "acc_dtype": op.acc_dtype}
    rows.tag.by_channels = True
    each = type(op)(op.scalar_op, axis=(1,), reduce_mask=(0, 1), **types)(rows)
    by_image = GpuReshape(2)(each, tensor.stack([images, channels]))
    by_image.tag.by_channels = True
    return [type(op)(op.scalar_op, axis=(0,), reduce_mask=(1, 0), **types)(by_image)]


def cached_reductions() -> str:
    """G14: keep Theano's own reductions on GPUs in the disk cache.

    No part of a module's version may be 0 or empty, and one is how much the C code prints: 0. So
    each process compiles each kind of reduction for a second, under the global compile lock.
    """
    from theano.gpuarray.elemwise import GpuCAReduceCuda

    function = GpuCAReduceCuda.c_code_cache_version_apply
    rewrite(function, "[24, self.verbose]", "[24, (self.verbose,)]", 1)
    return "GpuCAReduceCuda.c_code_cache_version_apply"
