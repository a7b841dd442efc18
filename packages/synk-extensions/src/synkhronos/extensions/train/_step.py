"""One callable that takes an exact data-parallel training step, in three parts over all ranks::

    grad_function(x, y)          each rank: gradient over its rows -> flat_grad
    all_reduce(flat_grad)        every rank: the average, weighted by the rows each rank had
    update_function()            each rank: the same step of the parameters

So it is the serial step on the whole batch, to rounding, if the loss is a mean over its rows. With
a rule of `synkhronos.extensions.sync` in place of the all_reduce each rank steps by its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

import synkhronos as synk
from synk_core import brief_traceback, flat_updates
from synk_core.engine import T, Variable, library
from synkhronos.extensions.sync import SyncRule
from synkhronos.extensions.updates._arguments import pairs_of
from synkhronos.extensions.updates._flatten import SplitUpdates
from synkhronos.extensions.updates._wrapping import three_parts

from ._arguments import call_of_1_0, data_and_rows, require_first_axis
from ._batches import drawn_batches, with_next
from ._data import any_source, as_source
from ._serial import SerialTrainFunction
from ._state import TrainingState, is_random, storage_of, training_state


class TrainFunction:
    """A training step over all ranks; made by :func:`make_train_function`.

    Attributes:
        grad_function: The :class:`synkhronos.Function` that writes each rank's gradient into
            :attr:`flat_grad` and returns the loss.
        update_function: The :class:`synkhronos.Function` that moves the parameters from there.
        flat_grad: The flat shared vector (a list of shared variables for ``sgd_nonflat``). After a
            call it holds the gradient over the whole batch, on every rank; with ``sync``, over the
            rank's own rows.
        state: :class:`TrainingState`: the shared variables that a step changes.
        output_names: For each output of a call, the name of its expression, or None.
        sync: The rule that combines the ranks' parameters every few steps, or None.
    """

    def __init__(
        self,
        grad_function: Any,
        update_function: Any,
        flat_grad: Any,
        state: TrainingState,
        output_names: Sequence[Any] = (None,),
        sync: SyncRule | None = None,
    ) -> None:
        self.grad_function, self.update_function = grad_function, update_function
        self.flat_grad, self.state, self.sync = flat_grad, state, sync
        self.output_names = tuple(output_names)

    @property
    def n_scattered(self) -> int:
        """Number of inputs whose rows are scattered; they come first."""
        return len(self.row_axes)

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axis along which the rows of each scattered input lie."""
        return tuple(self.grad_function.spec.row_axes)

    @property
    def rows(self) -> int:
        """Number of rows of the last step; 0 where none are divided."""
        return sum(self.grad_function.rows or ())

    @brief_traceback
    def __call__(
        self,
        *data: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        **named_data: Any,
    ) -> Any:
        """Take one step and return the loss before it. Blocks until every rank has taken it.

        Args:
            *data: One value per input, in the order of ``inputs``, then ``bcast_inputs``:
                ``synkhronos.Data``, or anything that ``numpy.asarray`` takes.
            batch: The rows of the data to use: int (the first), slice, list or array of
                indexes, boolean mask. Scattered over the ranks.
            batch_s: The same for the rows of ``sliceable_shareds`` in each rank, or a list of
                them, one per rank.
            num_slices: Number of slices of each rank's rows over which to compute the gradient, one
                after the other, to save memory. The result is the same.
            **named_data: Values by the name of their variable, as in Theano.

        Returns:
            The loss, the exact mean over the batch; ``[loss, *outputs]`` with further outputs.

        Raises:
            All errors of :class:`synkhronos.Function`. No parameter has changed on any rank then.
        """
        gradient = self.grad_function
        data, batch = call_of_1_0(len(gradient.spec.inputs), data, batch, named_data)
        options: dict[str, Any] = {"batch": batch, "batch_s": batch_s, "num_slices": num_slices}
        return self._take(gradient.delayed(*data, **options, **named_data))

    def steps(self, *data_and_batches: Any, num_slices: int = 1) -> Iterator[Any]:
        """Take a step for each batch; yield what a call returns, after each.

        The steps are those of a loop of calls. GPUs do not wait for data: while they compute a
        step, the rows of the next batch are taken and copied to them.

        ::

            for loss in train.steps(x_data, y_data, index_batches(len(x_data), 128, rng)):
                ...

        Args:
            *data_and_batches: One value per input, in the order of ``inputs``, then
                ``bcast_inputs``, and an iterable of what a call takes as ``batch``; the values must
                not change meanwhile. If the rows of one are in a file (a memory map, an HDF5
                dataset, a Zarr array), a thread reads the rows of each batch ahead. Or just an
                iterable that yields the arrays of each batch, one per input in a tuple, or a
                single one: a thread draws them ahead, up to two batches. The program's end does
                not wait for that thread. For a step without inputs, whose data are
                ``sliceable_shareds``, an iterable of what a call takes as ``batch_s``.
            num_slices: As in a call. With more than 1, rows are not taken ahead.

        Raises:
            TypeError: There are other than these arguments.
            All errors of a call. If the iterable raises an Exception, the steps of the batches
            before it are taken first.
        """
        return (take() for take in self.each_step(*data_and_batches, num_slices=num_slices))

    def each_step(self, *data_and_batches: Any, num_slices: int = 1) -> Iterator[Callable[[], Any]]:
        """Yield, when each batch is there, a function that takes its step; see :meth:`steps`."""
        count = len(self.grad_function.spec.inputs)
        data, batches = data_and_rows(data_and_batches, count)
        delayed = partial(self.grad_function.delayed, num_slices=num_slices)
        executor, place, sources = self.grad_function.orders, self.build_inputs, []
        scattered, whole = data[: self.n_scattered], data[self.n_scattered :]
        if not count or (data and not any_source(scattered)):
            option = "batch" if count else "batch_s"
            calls = (delayed(*data, **{option: rows}) for rows in batches)
            return self._each(calls, lambda: executor.prefetches)
        if data:
            require_first_axis(self.row_axes)
            sources = [as_source(item) for item in scattered]
            whole = [item if isinstance(item, synk.Data) else np.asarray(item) for item in whole]
            place = _as_they_are
        drawn: SimpleQueue[Any] = SimpleQueue()
        placed = drawn_batches(batches, place, executor, sources, drawn)
        calls = (delayed(*arrays, *whole) for arrays in placed)
        return self._each(calls, lambda: executor.prefetches and not drawn.empty())

    def _each(
        self, calls: Generator[Any], ahead: Callable[[], bool]
    ) -> Iterator[Callable[[], Any]]:
        with closing(calls):
            for call, following in with_next(calls, ahead):
                yield partial(self._take, call, following)

    def _take(self, call: Any, following: Any = None) -> Any:
        """Take one step, and the rows of the following one."""
        prefetch = [] if following is None else [following.prefetch()]
        if self.sync is not None:
            return self.sync.step(call, self.update_function, *prefetch)[0]
        reduction = synk.delayed.all_reduce(self.flat_grad, op="avg", weights=self.grad_function)
        return synk.step(call, reduction, self.update_function, *prefetch)[0]

    def build_inputs(self, *data: Any, **options: Any) -> Any:
        """Copy data sets to shared memory, one ``Data`` per input: ``Function.build_inputs``."""
        return self.grad_function.build_inputs(*data, **options)

    def __repr__(self) -> str:
        return f"<TrainFunction {self.grad_function!r}>"


def make_train_function(
    loss: Any,
    params: Any,
    inputs: Any = None,
    update_rule: Any = None,
    *args: Any,
    outputs: Sequence[Any] | None = None,
    bcast_inputs: Sequence[Any] | None = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Sequence[Any] | None = None,
    row_axis: Mapping[Any, int] | None = None,
    name: str = "train",
    flat: bool | None = None,
    sync: SyncRule | None = None,
    proof: str | bool | None = None,
    **kwargs: Any,
) -> TrainFunction:
    """Build a data-parallel training step; call it like a compiled Theano training function.

    ::

        train = make_train_function(loss, params, [x, y], updates.adam, learning_rate=1e-3)
        for indexes in index_batches(len(x_data), 128, rng):
            loss_value = train(x_data, y_data, batch=indexes)

    Args:
        loss: Scalar expression, a mean over the rows of the batch.
        params: Shared variables to train, equal on all ranks. They are equal if you create them
            after ``fork()`` or distribute them with this function; otherwise call
            ``synkhronos.broadcast`` on them.
        inputs: Variables whose values are scattered along their rows; a list, or a single one.
        update_rule: A rule of :mod:`synkhronos.extensions.updates`, or a function with the same
            interface: ``rule(loss, params, ...) -> (grad_updates, param_updates, flat_grad)``.
        *args: Further positional arguments of the rule.
        outputs: Further expressions to return with the loss, or (expression, reduce-op) pairs.
        bcast_inputs: Variables whose whole values every rank gets.
        updates: Further updates for the gradient function (running averages, counters), as in
            ``synkhronos.function``; they stay local to each rank.
        givens: As in Theano.
        sliceable_shareds: Shared variables that hold scattered data.
        row_axis: The axis along which rows of an input lie, where it is not 0, as in
            ``synkhronos.function``: ``{x: 1}``.
        name: Prefix of the two functions' names: "<name>: gradient" and "<name>: update".
        flat: Whether one computation moves all parameters that the rule moves alike, elementwise.
            Their values become views of one array, and so do those of each kind of the rule's
            state. The numbers are the same, up to a compiler's rounding. None for where it is
            quicker: with 8 parameters or more on GPUs, with 64 on processors.
        sync: A rule of :mod:`synkhronos.extensions.sync`, made for the same ``params``. Each rank
            then takes the step of its own rows, and the rule combines the parameters every few
            steps; the state of the update rule stays with its rank. The loss is the mean over the
            batch, each row by its rank's parameters.
        proof: What becomes of a step that is not that of one process, as in
            ``synkhronos.function``: False for batch normalization by each rank's own rows.
        **kwargs: Further arguments of the rule, such as ``learning_rate``.

    The form of release 1.0, ``make_train_function(loss, params, x, y, update_rule, *args,
    **kwargs)``, also works, with ``x=`` and ``y=`` as keywords, too. So does its call,
    ``train(x_data, y_data, batch)``.

    Raises:
        TypeError: ``update_rule`` is not callable, or does not return three parts.
        All errors of the rule itself and of building a function.
    """
    inputs, split = _split(loss, params, inputs, update_rule, args, kwargs)
    grad_updates, together, flat_grad = split
    pairs, every = pairs_of(updates or ()), [loss, *(outputs or ())]
    if sync is not None:
        _require_all_of(params, sync)
        had_rows, together = _where_rows(_expression(loss), together)
        grad_updates = [*grad_updates, had_rows]
    grad_function = synk.function(
        inputs,
        outputs=loss if outputs is None else every,
        bcast_inputs=bcast_inputs,
        updates=[(target, value, "avg") for target, value in grad_updates] + pairs,
        givens=givens,
        sliceable_shareds=sliceable_shareds,
        row_axis=row_axis,
        name=f"{name}: gradient",
        proof=proof,
    )
    if flat is not False:
        together = flat_updates(together, 2 if flat else None)
    update_function = synk.function([], updates=together, name=f"{name}: update", proof=proof)
    state = _state(params, split, every, pairs, pairs_of(givens or ()))
    if sync is not None:
        state = replace(state, centre=tuple(sync.centre), takes_local_steps=True)
    return TrainFunction(grad_function, update_function, flat_grad, state, _names(every), sync)


def make_train_function_theano(
    loss: Any,
    params: Any,
    inputs: Any = None,
    update_rule: Any = None,
    *args: Any,
    outputs: Sequence[Any] | None = None,
    bcast_inputs: Sequence[Any] | None = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Sequence[Any] | None = None,
    row_axis: Mapping[Any, int] | None = None,
    name: str = "train",
    flat: bool | None = None,  # noqa: ARG001 - of no effect in plain Theano
    proof: str | bool | None = None,  # noqa: ARG001 - likewise
    **kwargs: Any,
) -> SerialTrainFunction:
    """Build the same training step in plain Theano, in this process alone.

    Use it for comparison, and for programs that run either way: all arguments, and the call with
    ``batch``, ``batch_s`` and ``num_slices``, are those of :func:`make_train_function` (``flat``
    and ``proof`` have no effect, and there is no ``sync``). It needs no ``fork()``. It has its own
    optimiser state, but the parameters are the same variables.
    """
    inputs, split = _split(loss, params, inputs, update_rule, args, kwargs)
    pairs, given, every = pairs_of(updates or ()), pairs_of(givens or ()), [loss, *(outputs or ())]
    return SerialTrainFunction(
        split,
        inputs=inputs,
        outputs=loss if outputs is None else every,
        bcast_inputs=list(bcast_inputs or []),
        updates=pairs,
        givens=given,
        sliceable_shareds=list(sliceable_shareds or []),
        row_axes=[(row_axis or {}).get(variable, 0) for variable in inputs],
        name=name,
        state=_state(params, split, every, pairs, given),
        output_names=_names(every),
    )


def _as_they_are(*arrays: Any) -> tuple[Any, ...]:
    """Copy arrays to shared memory; each rank converts the dtype of its own rows."""
    return tuple(synk.data(array) for array in arrays)


def _split(
    loss: Any, params: Any, inputs: Any, update_rule: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[list[Any], SplitUpdates]:
    """Return the inputs in a list, and the rule's result, from this or 1.0's order of arguments."""
    named = []
    if inputs is None or isinstance(inputs, Variable):
        named = [kwargs.pop(name) for name in ("x", "y") if isinstance(kwargs.get(name), Variable)]
        if inputs is None and not named:
            raise TypeError("inputs are missing: expected the list of variables, after params")
        inputs = named if inputs is None else [inputs, *named]
    inputs = list(inputs)
    while isinstance(update_rule, Variable):
        inputs.append(update_rule)
        update_rule, args = (args[0], args[1:]) if args else (None, ())
    if isinstance(update_rule, tuple):
        raise TypeError(
            "update_rule is what a rule returns; expected the rule itself, and its arguments after "
            "it: make_train_function(loss, params, inputs, updates.adam, learning_rate=0.001)"
        )
    if not callable(update_rule):
        raise TypeError(
            f"update_rule is {update_rule!r}; expected a function such as "
            "synkhronos.extensions.updates.adam, after the list of inputs"
        )
    return inputs, three_parts(update_rule, update_rule(loss, params, *args, **kwargs))


def _expression(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _names(outputs: Sequence[Any]) -> list[Any]:
    return [getattr(_expression(output), "name", None) for output in outputs]


def _state(
    params: Any, split: Any, outputs: Sequence[Any], updates: Sequence[Any], givens: Sequence[Any]
) -> TrainingState:
    expressions = [_expression(output) for output in outputs]
    expressions += [value for _, value in (*split.grad_updates, *givens)]
    return training_state(params, split.param_updates, expressions, updates)


def _where_rows(loss: Any, param_updates: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return an update that notes that a rank had rows, and updates that need them to step."""
    mark = library.shared(np.zeros((), loss.dtype), name="had rows")
    moved = [
        (target, new if is_random(target) else T.switch(T.gt(mark, 0), new, target))
        for target, new in param_updates
    ]
    return (mark, T.ones_like(loss)), [*moved, (mark, T.zeros_like(mark))]


def _require_all_of(params: Any, sync: Any) -> None:
    """Raise an error unless ``sync`` is a rule that combines all parameters."""
    if not isinstance(sync, SyncRule):
        raise TypeError(
            f"sync is {sync!r}; expected a rule, such as synkhronos.extensions.sync.easgd(params, "
            "every=10)"
        )
    combined = {storage_of(param) for param in sync.params}
    for param in [params] if isinstance(params, Variable) else params:
        if storage_of(param) not in combined:
            raise ValueError(
                f"sync is {sync!r}, which does not combine the parameter {param}; make the rule "
                "with the same params"
            )
