"""Convolutions and pooling as operations of PyTensor's graphs, and their gradients.

The product of a convolution with the gradient for its outputs is linear in images, filters and
that gradient. So there are three operations, each of two of them, and they are their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, ClassVar, Union

import numba
import numpy as np
import pytensor.tensor as T
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.link.jax.ops import JAXOp
from pytensor.link.numba.dispatch import basic
from pytensor.scalar.basic import upcast

from . import _arrays

Padding = Union[str, int, Sequence[Union[int, Sequence[int]]]]


class ImageOp(JAXOp):  # type: ignore[misc] # PyTensor has no types
    """An operation on images of the shape (rows, channels, height, width).

    JAX's linker calls `perform_jax` of any `JAXOp`: nothing imports JAX before, or registers here.

    Attributes:
        geometry: the first argument of `compute`, the function of NumPy arrays.
        reads, gives: letters of the inputs and the output: x, w and y are images, filters and
            outputs of a convolution; z, m and v are images, those whose maxima count, and values
            of windows of pooling. An input with the output's letter only has its shape.
    """

    __props__ = ("geometry",)
    name = None  # but for that of the class
    ndim = 2  # axes of a window
    compute: ClassVar[Callable[..., Any]]
    reads: ClassVar[str]
    gives: ClassVar[str]

    def __init__(self, *geometry: Any) -> None:
        self.geometry = geometry

    def make_node(self, *inputs: Any) -> Any:
        inputs = tuple(map(T.as_tensor_variable, inputs))
        dtype = inputs[0].dtype
        if {(one.ndim, one.dtype) for one in inputs} != {(4, dtype)} or dtype[:5] != "float":
            got = ", ".join(str(one.type) for one in inputs)
            raise TypeError(f"{self}: got {got}; expected 4 axes, and floats of one type")
        shape = self.shape_of(*(one.type.shape for one in inputs))
        return Apply(self, list(inputs), [T.tensor(dtype=dtype, shape=tuple(shape))])

    def shape_of(self, *shapes: Any) -> Any:
        """Return the output's shape; lengths may be expressions, or None if unknown."""
        return shapes[-1]

    def infer_shape(self, _node: Any, shapes: Any) -> list[Any]:
        return [self.shape_of(*shapes)]

    def perform(self, _node: Any, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0] = type(self).compute(self.geometry, *inputs)

    def connection_pattern(self, _node: Any) -> list[list[bool]]:
        """Connect the inputs in which it is linear."""
        return [[name in _GIVING and name != self.gives] for name in self.reads]

    def pullback(self, inputs: Any, _outputs: Any, gradients: Any) -> list[Any]:
        known = {"m": inputs[0], **dict(zip(self.reads, inputs)), self.gives: gradients[0]}
        results = [DisconnectedType()() for _ in inputs]
        for i, (is_connected,) in enumerate(self.connection_pattern(None)):
            if is_connected:
                kind = _GIVING[self.reads[i]]
                results[i] = kind(*self.geometry)(*(known[one] for one in kind.reads))
        return results


class Conv2d(ImageOp):
    """Outputs, of images and filters; geometry: step, padding, dilation, number of groups."""

    compute, reads, gives = _arrays.convolve, "xw", "y"

    def shape_of(self, x: Any, w: Any) -> Any:
        *ways, groups = self.geometry
        if isinstance(x[1], int) and isinstance(w[1], int) and x[1] != w[1] * groups:
            raise ValueError(f"conv2d: got {x[1]} channels, expected {w[1]} x {groups} group(s)")
        return x[0], w[0], *map(_arrays.number_of_windows, x[2:], w[2:], *ways)

    def perform_jax(self, x: Any, w: Any) -> Any:
        from jax import lax  # slow to import, and optional

        step, padding, dilation, groups = self.geometry
        return lax.conv_general_dilated(
            x,
            w,
            step,
            list(map(_arrays.margins, w.shape[2:], dilation, padding)),
            rhs_dilation=dilation,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            feature_group_count=groups,
        )


class Conv2dImages(ImageOp):
    """The gradient of a convolution for images."""

    compute, reads, gives = _arrays.to_images, "wyx", "x"

    def perform_jax(self, w: Any, y: Any, x: Any) -> Any:
        return _transposed(lambda one: Conv2d(*self.geometry).perform_jax(one, w), x, y)


class Conv2dFilters(ImageOp):
    """The gradient of a convolution for filters."""

    compute, reads, gives = _arrays.to_filters, "xyw", "w"

    def perform_jax(self, x: Any, y: Any, w: Any) -> Any:
        return _transposed(lambda one: Conv2d(*self.geometry).perform_jax(x, one), w, y)


class Pool2d(ImageOp):
    """Maxima or averages; geometry: size, step, padding, whether it is the maximum."""

    compute: ClassVar[Callable[..., Any]] = _arrays.pool
    reads, gives = "z", "v"

    def shape_of(self, z: Any, *_: Any) -> Any:
        return *z[:2], *map(_arrays.number_of_windows, z[2:], *self.geometry[:3])

    def perform_jax(self, z: Any, *_: Any) -> Any:
        from jax import lax

        size, step, padding, is_max = self.geometry
        around = [(0, 0), (0, 0), *map(_arrays.margins, size, (1, 1), padding)]
        how = (1, 1, *size), (1, 1, *step), around
        if is_max:
            return lax.reduce_window(z, -np.inf, lax.max, *how)
        return lax.reduce_window(z, 0.0, lax.add, *how) / (size[0] * size[1])


class Pool2dAlong(Pool2d):
    """Entries of images where the maxima of others are, or averages."""

    compute, reads = _arrays.pool_along, "zm"

    def perform_jax(self, z: Any, *m: Any) -> Any:
        import jax

        return jax.jvp(super().perform_jax, m, (z,))[1]


class Pool2dBack(ImageOp):
    """The gradient of pooling for images."""

    compute, reads, gives = _arrays.pool_back, "vm", "z"

    def perform_jax(self, v: Any, m: Any) -> Any:
        return _transposed(Pool2d(*self.geometry).perform_jax, m, v)


_GIVING = {
    kind.gives: kind for kind in (Conv2d, Conv2dImages, Conv2dFilters, Pool2dAlong, Pool2dBack)
}


def _transposed(function: Any, at: Any, gradient: Any) -> Any:
    import jax

    return jax.vjp(function, at)[1](gradient)[0]


@basic.register_funcify_default_op_cache_key(ImageOp)  # type: ignore[untyped-decorator]
def _for_numba(op: Any, node: Any, **_: Any) -> Any:
    """Let code of Numba call NumPy: code of its own is no faster, and takes seconds to compile.

    Unlike a call of `perform`, it can be cached, and other processes load it.
    """
    result = basic.get_numba_type(node.outputs[0].type, layout="C")
    compute, geometry = type(op).compute, op.geometry

    def called(*inputs: Any) -> Any:
        with numba.objmode(out=result):
            out = compute(geometry, *inputs)
        return out  # noqa: RET504 - Numba allows no return within the block

    return basic.numba_njit(called), 1


def _pair(given: Any, name: str, least: int = 1) -> tuple[int, int]:
    """Return a number for each of two axes."""
    pair = (given, given) if isinstance(given, (int, np.integer)) else tuple(given)
    if len(pair) != 2 or any(int(one) != one or one < least for one in pair):
        raise ValueError(f"{name}: got {given!r}, expected an int >= {least}, or two of them")
    return int(pair[0]), int(pair[1])


def _pairs(padding: Padding) -> tuple[tuple[int, int], ...]:
    """Return the padding before and after each axis; -1 for "same", which depends on the size."""
    if padding in ("same", "valid"):
        return ((-1, -1) if padding == "same" else (0, 0),) * 2
    each = (padding, padding) if isinstance(padding, int) else tuple(padding)
    if len(each) != 2:
        raise ValueError(f"padding: got {padding!r}, expected 'same', 'valid', int or pairs")
    return tuple(_pair(one, "padding", 0) for one in each)


def conv2d(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """Convolve images with filters, which are not flipped, as usual in neural networks.

    Args:
        x: images, shape (rows, channels, height, width): floats.
        w: filters, shape (filters, channels / groups, height, width).
        stride: step between windows; as all lengths here, an int, or one for height and width each.
        padding: zeros around the images: "valid" is none; "same" keeps their size if `stride` is
            1, with as many on both sides, or one more behind; an int; or ints or pairs (before,
            after) for height and width.
        dilation: step between the pixels of a window.
        groups: number of parts into which channels and filters are divided, each convolved alone.

    Returns:
        An expression of shape (rows, filters, windows, windows). For biases add
        ``b[:, None, None]``.

    Raises:
        TypeError: the inputs have not four axes.
        ValueError: another argument; or shapes that do not fit, as soon as they are known.
    """
    x, w = T.as_tensor_variable(x), T.as_tensor_variable(w)
    dtype = upcast(x.dtype, w.dtype)
    geometry = _pair(stride, "stride"), _pairs(padding), _pair(dilation, "dilation"), int(groups)
    if groups < 1:
        raise ValueError(f"groups: got {groups}, expected at least 1")
    return Conv2d(*geometry)(x.astype(dtype), w.astype(dtype))


def pool2d(
    x: Any,
    size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    mode: str = "max",
) -> Any:
    """Take the maximum or average of windows of images, of each channel by itself.

    A gradient goes to the first of equal maxima. Averages count padding as zeros. A part of a
    window at the end of an axis is left out.

    Args:
        x: images, shape (rows, channels, height, width): floats.
        size: the windows': an int, or height and width.
        stride: step between windows; default: `size`.
        padding: as for `conv2d`, but less than `size`.
        mode: "max" or "average".

    Returns:
        An expression of shape (rows, channels, windows, windows).

    Raises:
        TypeError: `x` has not four axes of floats.
        ValueError: another argument.
    """
    size, padding = _pair(size, "size"), _pairs(padding)
    if mode not in ("max", "average"):
        raise ValueError(f"mode: got {mode!r}, expected 'max' or 'average'")
    if any(max(around) >= length for around, length in zip(padding, size)):
        raise ValueError(f"padding: got {padding}, expected less than the size, {size}")
    step = _pair(size if stride is None else stride, "stride")
    return Pool2d(size, step, padding, mode == "max")(x)
