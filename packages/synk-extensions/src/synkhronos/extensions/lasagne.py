r"""Batch normalisation over the rows of all ranks, for Lasagne 0.1 and 0.2.dev1.

An ordinary batch normalisation layer computes mean and variance over the rows of its own rank. The
network, its gradients, and each rank's running averages then differ from the serial ones. The layer
in this module computes them over the rows of all ranks, in the forward and in the backward pass, so
a training script gives the same numbers (to rounding) on any number of processes, for any shares of
the rows::

    from synkhronos.extensions.lasagne import SyncBatchNormLayer, convert, sync_batch_norm

    network = sync_batch_norm(DenseLayer(network, 800))    # replaces lasagne.layers.batch_norm
    convert(network)                                       # or: all layers of a finished network

Each layer makes every rank wait for all others twice in the forward and twice in the backward
pass. In plain Theano, on one rank, and with the running averages (``deterministic=True``) it is
an ordinary batch normalisation.

Source: Ioffe and Szegedy, Batch Normalization, 2015 (arXiv:1502.03167); names and defaults are
those of ``lasagne.layers.BatchNormLayer`` in Lasagne 0.2.dev1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synkhronos.in_graph import all_reduce

try:
    import lasagne
    import theano
    import theano.tensor as T
except ImportError as error:
    raise ImportError(
        "synkhronos.extensions.lasagne needs Theano and Lasagne, on Python 3.9 to 3.11: "
        "pip install 'synkhronos[lasagne]', which installs neither on newer Pythons"
    ) from error

__all__ = ["SyncBatchNormLayer", "convert", "sync_batch_norm"]


class SyncBatchNormLayer(lasagne.layers.Layer):  # type: ignore[misc] # Lasagne has no types
    r"""Normalise the input by the statistics of all ranks' rows.

    :math:`y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta`, with mean and variance over
    ``axes`` of the rows of all ranks in an execution. In a call with ``num_slices``, an execution
    is a slice, and its statistics are those of the k-th slices of all ranks.

    Args:
        incoming: The layer below, or the shape of its output. Axis 0 is that of the rows;
            all rows have the same number of entries.
        axes: "auto" (all but axis 1, which is for dense and convolution layers), an int, or a
            tuple of ints. Axis 0 must be included.
        epsilon: Added to the variance.
        alpha: Factor of the running averages, ``(1 - alpha) * old + alpha * new`` after each call.
        beta, gamma: Initializer, array or shared variable of the shape of ``incoming`` without
            ``axes``, or None for none. Trainable; gamma is regularizable.
        mean, inv_std: The same for the running averages of mean and ``1 / sqrt(var + epsilon)``,
            tagged ``batch_norm_stat``, not trainable. After a call they are equal on all ranks.
        cost: "mean" if the training cost is a mean over rows, as training losses are; "sum" if it
            is a sum over rows. See :func:`synkhronos.in_graph.all_reduce`.
        **kwargs: As for every layer: ``name``.

    Raises:
        ValueError: ``axes`` has no 0, ``cost`` is unknown, or a required size is None.
    """

    def __init__(
        self,
        incoming: Any,
        axes: str | int | Sequence[int] = "auto",
        epsilon: float = 1e-4,
        alpha: float = 0.1,
        beta: Any = lasagne.init.Constant(0),  # noqa: B008 - it has no state
        gamma: Any = lasagne.init.Constant(1),  # noqa: B008
        mean: Any = lasagne.init.Constant(0),  # noqa: B008
        inv_std: Any = lasagne.init.Constant(1),  # noqa: B008
        cost: str = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(incoming, **kwargs)
        self.axes = _axes(axes, len(self.input_shape))
        self.epsilon = epsilon
        self.alpha = alpha
        self.cost = _checked_cost(cost)
        shape = [size for axis, size in enumerate(self.input_shape) if axis not in self.axes]
        if any(size is None for size in shape):
            raise ValueError(
                f"got an input of shape {self.input_shape}, expected sizes for all axes but "
                f"{self.axes}: they are the shape of the parameters"
            )
        self.beta = self.gamma = None
        if beta is not None:
            self.beta = self.add_param(beta, shape, "beta", regularizable=False)
        if gamma is not None:
            self.gamma = self.add_param(gamma, shape, "gamma")
        statistic = {"trainable": False, "regularizable": False, "batch_norm_stat": True}
        self.mean = self.add_param(mean, shape, "mean", **statistic)
        self.inv_std = self.add_param(inv_std, shape, "inv_std", **statistic)

    def get_output_for(
        self,
        input: Any,  # noqa: A002 - Lasagne's name for it
        deterministic: bool = False,
        batch_norm_use_averages: bool | None = None,
        batch_norm_update_averages: bool | None = None,
        **kwargs: Any,  # noqa: ARG002 - for other layers
    ) -> Any:
        """Return the expression of the layer's output.

        Args:
            input: Expression of the input.
            deterministic: Use the running averages without updating them.
            batch_norm_use_averages: Use them; default ``deterministic``.
            batch_norm_update_averages: Update them; default ``not deterministic``.
        """
        use, update = batch_norm_use_averages, batch_norm_update_averages
        use = deterministic if use is None else use
        update = not deterministic if update is None else update
        kept = iter(range(input.ndim - len(self.axes)))
        pattern = ["x" if axis in self.axes else next(kept) for axis in range(input.ndim)]
        mean, inv_std = self.mean, self.inv_std
        if update or not use:
            # The variance after the mean, not from squares, avoids cancellation.
            over_all = all_reduce(input.mean(self.axes), "avg", cost=self.cost)
            squares = T.sqr(input - over_all.dimshuffle(pattern)).mean(self.axes)
            variance = all_reduce(squares, "avg", cost=self.cost)
            now = (over_all, T.inv(T.sqrt(variance + self.epsilon)))
            if not use:
                mean, inv_std = now
            if update:
                # Like Lasagne's: they are part of the graph, so that Theano finds their updates.
                mean = mean + 0 * self._updated(self.mean, now[0])
                inv_std = inv_std + 0 * self._updated(self.inv_std, now[1])
        scale = inv_std if self.gamma is None else self.gamma * inv_std
        result = (input - mean.dimshuffle(pattern)) * scale.dimshuffle(pattern)
        return result if self.beta is None else result + self.beta.dimshuffle(pattern)

    def _updated(self, variable: Any, value: Any) -> Any:
        """Return the same variable, with a running average as its default update."""
        running = theano.clone(variable, share_inputs=False)
        running.default_update = (1 - self.alpha) * running + self.alpha * value
        return running


def sync_batch_norm(layer: Any, **kwargs: Any) -> Any:
    """Put synchronised batch normalisation between a layer and its nonlinearity.

    As in ``lasagne.layers.batch_norm``, the layer's nonlinearity becomes a separate layer, and its
    bias, which the normalisation would cancel, is removed.

    Args:
        layer: The layer; it is changed.
        **kwargs: Arguments of :class:`SyncBatchNormLayer`.

    Returns:
        The topmost of the new layers.

    Raises:
        ValueError: The layer is normalised already.
    """
    # lasagne.layers.batch_norm() returns the nonlinearity above its layer.
    is_above = isinstance(layer, lasagne.layers.NonlinearityLayer)
    below = layer.input_layer if is_above else layer
    is_normalised = isinstance(below, (SyncBatchNormLayer, _ordinary()))
    if is_normalised:
        raise ValueError(
            f"sync_batch_norm: got {layer.name or layer!r}, which is normalised already; give "
            f"it the layer itself, instead of batch_norm(layer), or use convert(network)"
        )
    nonlinearity = getattr(layer, "nonlinearity", None)
    if nonlinearity is not None:
        layer.nonlinearity = lasagne.nonlinearities.identity
    if getattr(layer, "b", None) is not None:
        del layer.params[layer.b]
        layer.b = None
    own_name = getattr(layer, "name", None)
    name = kwargs.pop("name", None) or (f"{own_name}_bn" if own_name else None)
    result = SyncBatchNormLayer(layer, name=name, **kwargs)
    if nonlinearity is None:
        return result
    name = f"{name}_nonlin" if name else None
    return lasagne.layers.NonlinearityLayer(result, nonlinearity, name=name)


def convert(network: Any, *, cost: str = "mean") -> Any:
    """Turn all batch normalisation layers of a network into synchronised ones, in place.

    Call it before ``get_output()``: expressions that a network has given before stay as they are.
    Layers and parameters stay the same objects, with their values. Layers inside another layer,
    such as those of a ``CustomRecurrentLayer``, are not changed.

    Args:
        network: The output layer, or a list of them.
        cost: As for :class:`SyncBatchNormLayer`.

    Returns:
        ``network``.

    Raises:
        TypeError: A layer's class is derived from Lasagne's and may compute something else.
        ValueError: A layer normalises each row separately: its axes do not include 0.
    """
    layers = lasagne.layers.get_all_layers(network)
    found = [item for item in layers if isinstance(item, _ordinary())]
    for layer in found:
        if not type(layer).__module__.startswith("lasagne."):
            raise TypeError(
                f"layer {layer.name or layer!r} is a {type(layer).__name__}, derived from "
                f"BatchNormLayer; put a SyncBatchNormLayer in its place by hand"
            )
        _axes(layer.axes, len(layer.input_shape))
    for layer in found:
        layer.__class__ = SyncBatchNormLayer
        layer.cost = _checked_cost(cost)
    return network


def _ordinary() -> Any:
    # Lasagne 0.1 has none, and nothing is an instance of ().
    return getattr(lasagne.layers, "BatchNormLayer", ())


def _axes(axes: str | int | Sequence[int], ndim: int) -> tuple[int, ...]:
    if isinstance(axes, str):
        if axes != "auto":
            raise ValueError(f"got axes {axes!r}, expected 'auto', an int or a tuple of ints")
        return (0, *range(2, ndim))
    found = tuple(int(axis) for axis in np.atleast_1d(axes))
    if 0 not in found:
        raise ValueError(
            f"got axes {found}, expected axis 0, that of the rows, among them: without it each row "
            f"has its own statistics, and there is nothing to synchronise"
        )
    return found


def _checked_cost(cost: str) -> str:
    if cost not in ("mean", "sum"):
        raise ValueError(f"got cost {cost!r}, expected 'mean' or 'sum'")
    return cost
