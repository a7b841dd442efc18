"""Functions of JAX's as plain ones, to be traced as parts of larger programs."""

from __future__ import annotations

from typing import Any, Callable, List

import jax.numpy as jnp


def traceable(function: Any) -> Callable[..., List[Any]]:
    """Return a callable of all inputs of a compiled function that returns all its outputs, with
    the dtypes of its graph; plain Python that JAX can trace."""
    run, dtypes = function.vm.jit_fn.__wrapped__, [v.dtype for v in function.maker.fgraph.outputs]

    def traced(*inputs: Any) -> List[Any]:
        return [jnp.asarray(value, dtype) for value, dtype in zip(run(*inputs) or (), dtypes)]

    return traced
