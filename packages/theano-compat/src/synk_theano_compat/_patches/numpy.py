"""P6, P7, P15: names that NumPy has removed since, and indexes that it reads in another way."""

from __future__ import annotations

import builtins

from .rewrite import rewrite


def builtin_names() -> str:
    """P7: restore NumPy's synonyms of builtin types (``np.bool is bool``), gone since 1.24."""
    import numpy as np

    names = [
        name
        for name in ("bool", "int", "float", "complex", "object", "str")
        if name not in vars(np) and name not in getattr(np, "__deprecated_attrs__", ())
    ]
    for name in names:
        setattr(np, name, getattr(builtins, name))
    return ", ".join(f"numpy.{name}" for name in names) or "not needed"


def topk_index() -> str:
    """P6: index with a tuple in top-k; NumPy 1.23 reads a list as an array of indexes."""
    from theano.tensor.sort import _topk_py_impl  # theano.tensor.sort is also a function

    rewrite(_topk_py_impl, "axis=axis)[idx]", "axis=axis)[tuple(idx)]", 3)
    return "TopKOp"


def pool_index() -> str:
    """P6: index with a tuple in the Python implementations of pooling and of its R-operator."""
    from theano.tensor.signal import pool

    index = "[[region_slices[i][r[i]] for i in xrange(nd)]]"
    cured = "[tuple([region_slices[i][r[i]] for i in xrange(nd)])]"
    rewrite(pool.Pool.perform, index, cured, 1)
    rewrite(pool.MaxPoolRop.perform, index, cured, 2)
    return "Pool, MaxPoolRop"


def no_product() -> str:
    """P15: multiply scalars by ``np.prod``: NumPy 1.25 warns at each call of ``np.product``.

    Without a compiler, Theano calls it for each item of each product.
    """
    import numpy as np
    from theano.scalar.basic import Mul

    Mul.impl = lambda _self, *inputs: np.prod(inputs)
    return "Mul.impl"
