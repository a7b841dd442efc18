"""The training step in the plain engine, in one process: the reference for the parallel step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from synk_core import RowSource, whole
from synk_core.engine import T, library
from synkhronos.extensions.updates._wrapping import stores

from ._arguments import call_of_1_0, data_and_rows
from ._batches import arrays_of
from ._state import TrainingState

_REDUCTIONS: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


class SerialTrainFunction:
    """A training step in this process; made by ``make_train_function_theano``.

    It has the attributes of :class:`TrainFunction`; ``sync`` is None.
    """

    sync = None

    def __init__(
        self,
        split_updates: Any,
        inputs: Sequence[Any],
        outputs: Any,
        bcast_inputs: Sequence[Any],
        updates: Sequence[Any],
        givens: Sequence[Any],
        sliceable_shareds: Sequence[Any],
        row_axes: Sequence[int],
        name: str,
        state: TrainingState,
        output_names: Sequence[Any],
    ) -> None:
        self.state, self.output_names = state, tuple(output_names)
        grad_updates, param_updates, self.flat_grad = split_updates
        self._stores = stores(split_updates)
        self._single = not isinstance(outputs, list)
        pairs = [_with_op(output) for output in ([outputs] if self._single else outputs)]
        self._ops = [op for _, op in pairs]
        self.n_scattered, self.row_axes, self.rows = len(inputs), tuple(row_axes), 0
        self._sliceable = list(sliceable_shareds)
        rows = [T.lvector("rows")] if sliceable_shareds else []
        self.grad_function = library.function(
            [*rows, *inputs, *bcast_inputs],
            [output for output, _ in pairs],
            updates=[*grad_updates, *(update[:2] for update in updates)],
            # The sliced variables come first, so that later givens can use them.
            givens=[*((shared, shared[rows[0]]) for shared in self._sliceable), *givens],
            name=f"{name}: gradient",
        )
        self.update_function = library.function([], updates=param_updates, name=f"{name}: update")
        self._names = [variable.name for variable in [*inputs, *bcast_inputs]]

    def build_inputs(self, *data: Any, **_options: Any) -> Any:
        """Return the data as arrays; the parallel step copies them to shared memory instead."""
        arrays = tuple(map(np.asarray, data))
        return arrays[0] if len(arrays) == 1 else arrays

    def __call__(
        self,
        *data: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        **named_data: Any,
    ) -> Any:
        """Take one step and return the loss before it, as ``TrainFunction`` does.

        ``batch_s`` selects from the whole sliceable shared variables, since there is one rank.
        With ``num_slices``, loss and gradient are averages weighted by rows; further ``updates``
        of the gradient function happen once per slice here.
        """
        data, batch = call_of_1_0(len(self._names), data, batch, named_data)
        scattered, bcast = self._arguments(data, named_data)
        scattered = [array[_key(batch)] for array in scattered]
        rows = []
        if self._sliceable:
            length = self._sliceable[0].get_value(borrow=True, return_internal_type=True).shape[0]
            rows = [np.arange(length)[_key(batch_s)]]
        slices: list[Any] = [slice(None)]
        if num_slices > 1:
            count = len(scattered[0]) if scattered else len(rows[0])
            slices = [_key(part) for part in np.array_split(np.arange(count), num_slices)]
            slices = [part for part in slices if len(part)] or [slice(None)]
        state = self.state
        changed = [*state.params, *state.optimizer, *state.local, *state.random]
        before = [shared.get_value(return_internal_type=True) for shared in changed]

        def act() -> Any:
            results, weights, gradients = [], [], []
            for part in slices:
                arguments = [array[part] for array in [*rows, *scattered]]
                axes = [*(0 for _ in rows), *self.row_axes]
                declared = [np.moveaxis(array, 0, axis) for array, axis in zip(arguments, axes)]
                results.append(self.grad_function(*declared, *bcast))
                weights.append(len(arguments[0]) if arguments else 1)
                if len(slices) > 1:
                    gradients.append([shared.get_value() for shared in self._stores])
            for shared, values in zip(self._stores, zip(*gradients)):
                shared.set_value(_average(values, weights))
            self.update_function()
            self.rows = sum(weights) if rows or scattered else 0
            outputs = [combine(op, values, weights) for op, values in zip(self._ops, zip(*results))]
            return outputs[0] if self._single else outputs

        return whole(act, partial(set_values, changed, before))

    def steps(self, *data_and_batches: Any, num_slices: int = 1) -> Iterator[Any]:
        """Take a step for each batch; yield what a call returns, as ``TrainFunction.steps``."""
        return (take() for take in self.each_step(*data_and_batches, num_slices=num_slices))

    def each_step(self, *data_and_batches: Any, num_slices: int = 1) -> Iterator[Callable[[], Any]]:
        """Draw each batch when it is asked for; yield a function that takes its step."""
        data, batches = data_and_rows(data_and_batches, len(self._names))
        step = partial(self, num_slices=num_slices)
        if data:
            return (partial(step, *data, batch=batch) for batch in batches)
        if not self._names:
            return (partial(step, batch_s=rows) for rows in batches)
        return (partial(step, *arrays_of(batch)) for batch in batches)

    def _arguments(self, data: Any, named_data: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        names = self._names[len(data) :]
        missing = [name for name in names if name not in named_data]
        unused = sorted(named_data.keys() - set(names))
        if missing or unused or len(data) > len(self._names):
            problem = f"no {missing[0]!r}" if missing else f"the unused names {unused}"
            raise TypeError(
                f"got {len(data)} values and {problem}; expected one for each of the "
                f"inputs {self._names}"
            )
        values = [*data, *(named_data[name] for name in names)]
        scattered = [_rows_of(value, axis) for value, axis in zip(values, self.row_axes)]
        return scattered, [np.asarray(value) for value in values[self.n_scattered :]]

    def __repr__(self) -> str:
        return f"<SerialTrainFunction {self.grad_function.name!r}>"


def _with_op(output: Any) -> tuple[Any, Any]:
    """Return (expression, reduce-op) of an output; "c_avg" means "avg" here, and so on."""
    expression, op = output if isinstance(output, tuple) else (output, "avg")
    return expression, op[2:] if op is not None and op.startswith("c_") else op


def _rows_of(value: Any, axis: int) -> Any:
    """Return what has the value's rows first."""
    source = None if axis else RowSource.of(value)
    return np.moveaxis(np.asarray(value), axis, 0) if source is None else source


def _key(batch: Any) -> Any:
    """Return an index that selects the rows of ``batch`` from a NumPy array."""
    if batch is None:
        return slice(None)
    if isinstance(batch, (int, np.integer)):
        return slice(int(batch))
    return batch if isinstance(batch, slice) else np.asarray(batch)


def _average(values: Sequence[Any], weights: Sequence[int]) -> Any:
    return sum(value * (weight / sum(weights)) for value, weight in zip(values, weights))


def set_values(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Set the values of shared variables, in this process."""
    for variable, value in zip(variables, values):
        variable.set_value(value)


def combine(op: Any, values: Sequence[Any], weights: Sequence[int]) -> Any:
    """Reduce one output's values over the slices."""
    if len(values) == 1 or op is None:
        return values[0]
    if op == "avg":
        return _average(values, weights)
    if op == "gather":
        return np.concatenate(values)
    return _REDUCTIONS[op](values, axis=0)
