"""`Function`: what `synk.function()` returns, in place of a `theano.Function`."""

from __future__ import annotations

from typing import Any, ContextManager, Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np
import theano

from ._data import Data
from ._messages import PLAIN, ArrayRef, Call, Command, Form, Rows, ScatteredInput
from ._plan import Bounds, Selection, selection_for, selector, split_rows
from ._spec import FunctionSpec
from .exceptions import InputTypeError, InputValueError, OpError


class Launcher(Protocol):
    """What a function or a collective needs of the runtime."""

    size: int
    master: int

    @property
    def exclusive(self) -> ContextManager[Any]:
        """Held while something is staged and run: other threads wait."""

    def run(self, command: Command) -> Any:
        """Have all ranks perform a command; blocks until they have."""

    def stage(self, slot: Tuple[Any, ...], array: np.ndarray) -> ArrayRef:
        """Copy `array` into shared memory that is reused for `slot`."""

    def data(self, value: Any, var: Any, **settings: Any) -> Data:
        """`synk.data()`."""

    def require_form(self, function_id: int, form: Form) -> None:
        """Have `form` of the function on every rank; compiles and distributes if needed."""


class Function:
    """A Theano function that is computed by all ranks at once.

    Attributes:
        name: as in Theano functions.
        rows: how many rows each rank computed in the last call, or None before the first: the
            weights with which ``all_reduce(..., weights=f.rows)`` averages exactly.
    """

    def __init__(
        self, spec: FunctionSpec, function_id: int, plain: Any, launcher: Launcher
    ) -> None:
        self._spec = spec
        self._id = function_id
        self._plain = plain
        self._launcher = launcher
        self._variables = spec.variables
        self._dtypes = [np.dtype(v.dtype) for v in self._variables]
        self._labels = [v.name or f"{i}" for i, v in enumerate(self._variables)]
        self.rows: Optional[Tuple[int, ...]] = None

    @property
    def name(self) -> Optional[str]:
        """As in Theano functions."""
        return self._spec.name

    @property
    def output_modes(self) -> Tuple[Optional[str], ...]:
        """The reduce operation of each output."""
        return self._spec.output_ops

    @property
    def update_modes(self) -> Tuple[str, ...]:
        """The operation with which each update accumulates over slices."""
        return tuple(op for _, _, op in self._spec.updates)

    def get_shared(self) -> List[Any]:
        """The shared variables that the function reads or updates."""
        shared: List[Any] = self._plain.get_shared()
        return shared

    def __repr__(self) -> str:
        names = ", ".join(self._labels)
        return f"<synkhronos function {self.name or ''}({names}) on {self._launcher.size} ranks>"

    def __call__(
        self,
        *args: Any,
        output_subset: Optional[Sequence[int]] = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Compute on all ranks; blocks until all are done.

        Scattered inputs are split along axis 0 into contiguous shares in rank order whose sizes
        differ by at most one, larger shares first. Ranks without rows do not compute. Each rank
        runs the Theano function on its share, and the outputs are collected in the master:
        ``avg`` (weighted by rows: exact for any split), ``sum``, ``max``, ``min``, ``prod``,
        ``gather`` (concatenated in input order) or None (the master's own result).

        Args:
            *args: a `Data`, or anything that `numpy.asarray` takes, for each input in order.
            output_subset: positions of the outputs to return, as in Theano.
            batch: rows of the scattered inputs to use, before they are split: an int (the first
                so many), slice, list or array of ints, or boolean mask.
            batch_s: rows of the sliceable shared variables to use, on each rank of its own: one
                of these kinds for all ranks, or a list of them, one per rank.
            num_slices: compute each rank's share in so many pieces and accumulate, to save
                memory. Updates are computed from the original values in every piece, accumulated,
                and applied once.
            **kwargs: inputs by the names of their variables.

        Raises:
            InputTypeError, InputValueError, BatchError, OpError: bad arguments; nothing was sent.
            WorkerFailed: the computation raised on a worker.
            WorkerDied: a worker process is gone, and the runtime is closed.
        """
        values = self._order(args, kwargs)
        inputs = [self._accept(i, value) for i, value in enumerate(values)]
        wanted = self._wanted(output_subset)
        self._check_slices(num_slices, wanted)
        selectors = self._selectors(batch_s)
        rows_selection = self._selection(inputs, batch)
        self._check_own_result(rows_selection, wanted)
        form = self._form(selectors, num_slices)
        with self._launcher.exclusive:
            self._launcher.require_form(self._id, form)
            scattered, broadcast = self._stage(inputs, rows_selection)
            rows = None
            if rows_selection is not None:
                bounds = split_rows(rows_selection.count, self._launcher.size)
                rows = staged_rows(self._launcher, rows_selection, bounds)
            result = self._launcher.run(
                Call(
                    function_id=self._id,
                    form=form,
                    rows=rows,
                    scattered=scattered,
                    broadcast=broadcast,
                    outputs=wanted,
                    num_slices=num_slices,
                    selectors=selectors,
                )
            )
        self.rows = result.counts
        return self._returned(result.values, output_subset)

    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Compute in the master only, as a plain Theano function would.

        Args:
            *args, **kwargs: arrays or `Data`, as in `__call__`, without the options of it.
        """
        values = self._order(args, kwargs)
        plain = self._plain(*(v.data if isinstance(v, Data) else v for v in values))
        return self._returned(plain, None)

    def build_inputs(
        self,
        *args: Any,
        force_cast: bool = False,
        oversize: float = 1.0,
        minibatch: Any = False,
        **kwargs: Any,
    ) -> Any:
        """Make a `Data` for each input, as `synk.data()` does, with the input's dtype and ndim.

        Args:
            *args, **kwargs: values, given as in a call.
            minibatch: True, False, or a list with one of these per input.

        Returns:
            A `Data` for a function of one input, else a tuple of them.
        """
        values = self._order(args, kwargs)
        flags = list(minibatch) if isinstance(minibatch, (list, tuple)) else None
        if flags is not None and len(flags) != len(values):
            raise InputTypeError(
                f"minibatch: got {len(flags)} entries, expected one for each of "
                f"{len(values)} inputs"
            )
        datas = tuple(
            self._launcher.data(
                value,
                variable,
                force_cast=force_cast,
                oversize=oversize,
                minibatch=bool(minibatch if flags is None else flags[i]),
                name=variable.name,
            )
            for i, (value, variable) in enumerate(zip(values, self._variables))
        )
        return datas[0] if len(datas) == 1 else datas

    def _order(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
        """Positional and keyword inputs in the order of the variables."""
        expected = len(self._variables)
        names = [v.name for v in self._variables]
        for key in kwargs:
            if key not in names:
                raise InputTypeError(
                    f"{self!r} got an unknown keyword {key!r}, expected one of its inputs "
                    f"{[n for n in names if n]} (and, in a parallel call only, output_subset, "
                    f"batch, batch_s, num_slices)"
                )
            if names.index(key) < len(args):
                raise InputTypeError(f"{self!r} got input {key!r} by position and by keyword")
        if len(args) + len(kwargs) != expected:
            raise InputTypeError(
                f"{self!r} got {len(args) + len(kwargs)} inputs, expected {expected}: "
                f"{', '.join(self._labels) or 'none'}"
            )
        return list(args) + [kwargs[name] for name in names[len(args) :]]

    def _accept(self, place: int, value: Any) -> Any:
        """The input as `Data`, or as an array that the variable takes.

        A dtype that Theano would convert without loss is let through as it is: each rank
        converts its own rows.
        """
        variable, label = self._variables[place], self._labels[place]
        what = f"input {label} of {self!r}"
        declared = self._spec.inputs[place]
        downcast = getattr(declared, "allow_downcast", None)
        if downcast is None:
            downcast = self._spec.kwargs.get("allow_input_downcast")
        if not isinstance(value, Data) and not isinstance(value, np.ndarray):
            try:
                value = np.asarray(variable.type.filter(value, allow_downcast=downcast))
            except (TypeError, ValueError) as error:
                raise InputTypeError(f"{what}: {error}") from None
        shape, dtype = value.shape, value.dtype
        if dtype.kind not in "biufc":
            raise InputTypeError(f"{what}: got dtype {dtype}, expected {variable.dtype}: numbers")
        if len(shape) != variable.ndim:
            raise InputTypeError(
                f"{what}: got {len(shape)} dimensions (shape {shape}), expected {variable.ndim}"
            )
        converts = downcast or dtype == self._dtypes[place]
        if not converts and theano.scalar.upcast(variable.dtype, dtype.name) != variable.dtype:
            raise InputTypeError(
                f"{what}: got dtype {dtype}, expected {variable.dtype} or a dtype that converts to "
                f"it without loss; convert an array with .astype({variable.dtype!r}), make a Data "
                f"with data(..., var={label}, force_cast=True), or build the function with "
                f"allow_input_downcast=True"
            )
        for axis, broadcastable in enumerate(variable.broadcastable):
            if broadcastable and shape[axis] != 1:
                raise InputValueError(
                    f"{what}: got shape {shape}, expected length 1 along axis {axis}, which is "
                    f"broadcastable"
                )
        return value

    def _wanted(self, output_subset: Optional[Sequence[int]]) -> Optional[Tuple[int, ...]]:
        if output_subset is None:
            return None
        count = len(self._spec.outputs)
        for position in output_subset:
            if not isinstance(position, (int, np.integer)) or not 0 <= position < count:
                raise InputValueError(
                    f"output_subset: got {position!r}, expected positions from 0 to {count - 1}"
                )
        return tuple(int(position) for position in output_subset)

    def _check_slices(self, num_slices: int, wanted: Optional[Tuple[int, ...]]) -> None:
        if not isinstance(num_slices, (int, np.integer)) or num_slices < 1:
            raise InputValueError(f"num_slices: got {num_slices!r}, expected an int of at least 1")
        if num_slices == 1:
            return
        if not self._spec.n_scattered and not self._spec.sliceable:
            raise InputValueError(
                f"num_slices: {self!r} has nothing to slice: no scattered inputs and no "
                f"sliceable_shareds"
            )
        ops = self._spec.output_ops
        for position in range(len(ops)) if wanted is None else wanted:
            if ops[position] is None:
                raise OpError(
                    f"output {position} of {self!r} has op None, which does not accumulate over "
                    f"slices; give it an op, or leave it out with output_subset"
                )

    def _selectors(self, batch_s: Any) -> Tuple[Any, ...]:
        """One selector per rank, or () for all rows everywhere."""
        if batch_s is None:
            return ()
        if not self._spec.sliceable:
            raise InputTypeError(
                f"{self!r} got batch_s, but has no sliceable_shareds; list them in function()"
            )
        size = self._launcher.size
        per_rank = isinstance(batch_s, (list, tuple)) and any(
            isinstance(item, (slice, list, tuple, range, np.ndarray)) for item in batch_s
        )
        if not per_rank:
            return (selector(batch_s, "batch_s"),) * size
        if len(batch_s) != size:
            raise InputValueError(
                f"batch_s: got a list of {len(batch_s)} selections, expected one for each of "
                f"{size} ranks"
            )
        return tuple(selector(item, "batch_s") for item in batch_s)

    def _selection(self, inputs: Sequence[Any], batch: Any) -> Optional[Selection]:
        n = self._spec.n_scattered
        if n == 0:
            if batch is not None:
                raise InputTypeError(
                    f"{self!r} got batch, but has no scattered inputs to select from"
                )
            return None
        return selection_for(
            batch,
            [len(item) for item in inputs[:n]],
            [isinstance(item, Data) and item.minibatch for item in inputs[:n]],
            self._labels[:n],
        )

    def _check_own_result(
        self, selection: Optional[Selection], wanted: Optional[Tuple[int, ...]]
    ) -> None:
        """An output with op None is the master's own: it needs a row there."""
        ops = self._spec.output_ops
        positions = range(len(ops)) if wanted is None else wanted
        if selection is None or not selection.count or all(ops[i] is not None for i in positions):
            return
        start, stop = split_rows(selection.count, self._launcher.size)[self._launcher.master]
        if start == stop:
            raise InputValueError(
                f"{self!r} has an output with op None, which is the master's own result, but rank "
                f"{self._launcher.master}, the master, gets none of {selection.count} rows; use "
                f"more rows, or another op"
            )

    def _form(self, selectors: Tuple[Any, ...], num_slices: int) -> Form:
        if num_slices == 1 and not selectors:
            return PLAIN
        select = None
        if self._spec.sliceable:
            ranges = all(_is_range(chosen) for chosen in selectors)
            select = "range" if ranges else "index"
        return Form(accumulate=num_slices > 1 and bool(self._spec.accumulated), select=select)

    def _stage(
        self, inputs: Sequence[Any], selection: Optional[Selection]
    ) -> Tuple[Tuple[ScatteredInput, ...], Tuple[ArrayRef, ...]]:
        n = self._spec.n_scattered
        scattered = []
        for i, item in enumerate(inputs[:n]):
            if isinstance(item, Data):
                offset = selection.lowest if item.minibatch and selection is not None else 0
                scattered.append(ScatteredInput(item.ref(), offset))
            elif selection is None or selection.covers(len(item)):
                scattered.append(ScatteredInput(self._launcher.stage((self._id, i), item), 0))
            else:
                # What is copied anyway is copied selected.
                ref = self._launcher.stage((self._id, i), _rows_of(item, selection))
                scattered.append(ScatteredInput(ref, selected=True))
        broadcast = tuple(
            item.ref() if isinstance(item, Data) else self._launcher.stage((self._id, i), item)
            for i, item in enumerate(inputs[n:], n)
        )
        return tuple(scattered), broadcast

    def _returned(self, values: List[Any], output_subset: Optional[Sequence[int]]) -> Any:
        if output_subset is not None:
            return values
        if self._spec.returns == "none":
            return None
        return values[0] if self._spec.returns == "single" else values


def _is_range(chosen: Any) -> bool:
    return isinstance(chosen, slice) and chosen.step in (None, 1)


def staged_rows(launcher: Launcher, selection: Selection, bounds: Sequence[Bounds]) -> Rows:
    """The rows of a command: the selection, its index in shared memory, and each rank's part."""
    index = None
    if selection.index is not None:
        index = launcher.stage(("index",), selection.index)
    return Rows(tuple(bounds), selection.start, selection.step, index)


def _rows_of(array: np.ndarray, selection: Selection) -> np.ndarray:
    """The selected rows of `array`, in the order of the selection."""
    if selection.index is not None:
        return array[selection.index]
    positions = selection.start + selection.step * np.arange(selection.count)
    return array[positions]
