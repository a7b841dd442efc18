"""Stand-in for ``theano.tensor.signal.downsample``, which Theano 1.0 removed.

Lasagne 0.1 and other programs of 2015 import it. It maps the arguments of that time to those of
:func:`theano.tensor.signal.pool.pool_2d`; results are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from theano.tensor.signal import pool

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["max_pool_2d", "max_pool_2d_same_size"]

max_pool_2d_same_size = pool.max_pool_2d_same_size


def max_pool_2d(
    input: Any,  # noqa: A002 - its name in 2015
    ds: Sequence[int],
    ignore_border: bool | None = None,
    st: Sequence[int] | None = None,
    padding: Sequence[int] = (0, 0),
    mode: str = "max",
) -> Any:
    """Pool the last two dimensions of a symbolic tensor.

    Args:
        input: Tensor variable of at least two dimensions.
        ds: Rows and columns of the pooling window.
        ignore_border: Whether to drop the last, incomplete windows. None means False, as in 2015.
        st: Rows and columns from one window to the next; None for ``ds``.
        padding: Rows and columns of zeros on each side; needs ``ignore_border=True``.
        mode: ``"max"``, ``"sum"``, ``"average_inc_pad"`` or ``"average_exc_pad"``.

    Example:
        >>> import theano.tensor as T
        >>> from theano.tensor.signal import downsample
        >>> downsample.max_pool_2d(T.tensor4(), ds=(2, 2)).ndim
        4
    """
    return pool.pool_2d(
        input,
        ws=tuple(ds),
        ignore_border=bool(ignore_border),
        stride=None if st is None else tuple(st),
        pad=tuple(padding),
        mode=mode,
    )
