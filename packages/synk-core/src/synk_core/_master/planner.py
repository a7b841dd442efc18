"""From a function's arguments to an act: order, checks, selection of rows, and plans.

Planning anew costs some hundred microseconds; a call whose inputs have the shapes and places of an
earlier one, with a batch of the same length, finds its act again and only copies what changed.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.spec import FunctionSpec
from synk_core._plan.arguments import DEFAULT, Options
from synk_core._plan.conversion import NUMERIC, unmasked
from synk_core._plan.rows import (
    Selection,
    Selector,
    all_ranges,
    as_int,
    is_int,
    require_own_row,
    selection_for,
    selectors_for,
    split_rows,
    written,
)
from synk_core._text import clipped, shown
from synk_core._wire.arrays import copy_rows
from synk_core._wire.data import Data
from synk_core._wire.messages import (
    PLAIN,
    ROWLESS,
    ArrayRef,
    Call,
    Form,
    ScatteredInput,
    StagedSelector,
)
from synk_core._wire.sources import RowSource
from synk_core.engine import upcast
from synk_core.exceptions import InputTypeError, InputValueError, OpError

from .acts import Prepared
from .orders import Orders

MOST_KNOWN = 256
"""Shapes of inputs that a function remembers."""

MOST_SLICES = 1 << 20
"""Slices at most: each rank makes a list of them, and no slice is smaller than a row."""


_ODD = object()
"""In place of a value that is no array yet: no plan has it."""


class Signature:
    """The inputs of a function, and the values that each takes."""

    def __init__(self, spec: FunctionSpec) -> None:
        self.variables = spec.variables
        self._names = [i.name or v.name for i, v in zip(spec.inputs, self.variables)]
        self.labels = [name or f"{i}" for i, name in enumerate(self._names)]
        self._row_axes = spec.row_axes
        self._name = f"function {spec.name!r}" if spec.name else "this function"
        self._dtypes = [np.dtype(v.dtype) for v in self.variables]
        self._ndims = [v.ndim for v in self.variables]
        self._broadcastable = [
            [axis for axis, is_one in enumerate(v.broadcastable) if is_one] for v in self.variables
        ]
        self._strict = [bool(getattr(declared, "strict", False)) for declared in spec.inputs]
        self._downcasts = [
            spec.kwargs.get("allow_input_downcast")
            if getattr(declared, "allow_downcast", None) is None
            else declared.allow_downcast
            for declared in spec.inputs
        ]

    def __str__(self) -> str:
        return ", ".join(self.labels)

    def read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Tuple[Sequence[Any], Tuple[Any, ...]]:
        """Return the inputs in the order of the variables, and the key of their checks and their
        plan: equal keys mean the same plan."""
        values = args
        count = len(self.variables)
        if kwargs or len(args) != count or (count == 1 and isinstance(args[0], dict)):
            values = self.ordered(args, kwargs)
        key: List[Any] = []
        for value in values:
            if type(value) is np.ndarray:
                key.append((value.dtype, value.shape))
            else:
                key.append(value.token if isinstance(value, (Data, RowSource)) else _ODD)
        return values, tuple(key)

    def ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the inputs, also those in one dict by variables or names, in the order of the
        variables."""
        named = list(kwargs.items())
        if len(args) == 1 and isinstance(args[0], dict):
            named += args[0].items()
            args = ()
        given: Dict[int, Any] = dict(enumerate(args))
        for key, value in named:
            place = self._place(key)
            if place in given:
                how = "by position and by keyword" if place < len(args) else "twice"
                raise InputTypeError(f"{self._name} got input {str(key)!r} {how}")
            given[place] = value
        if sorted(given) != list(range(len(self.variables))):
            raise InputTypeError(
                f"{self._name} got {len(given)} inputs, expected {len(self.variables)}: "
                f"{str(self) or 'none'}"
            )
        return [given[place] for place in range(len(self.variables))]

    def _place(self, key: Any) -> int:
        for place, variable in enumerate(self.variables):
            if variable is key or (isinstance(key, str) and self._names[place] == key):
                return place
        raise InputTypeError(
            f"{self._name} got an unknown keyword {shown(key)}, expected one of its inputs "
            f"{[n for n in self._names if n]} (and, in a parallel call only, output_subset, "
            f"batch, batch_s, num_slices)"
        )

    def accepted(self, place: int, value: Any) -> Any:
        """Return the input as `Data`, or as an array or source of rows that the variable takes.

        A dtype that converts without loss stays as it is: each rank converts its own rows.
        """
        kind = type(value)
        if kind is not Data and kind is not np.ndarray:
            value = self._converted(place, value)
        shape, dtype = value.shape, value.dtype
        # Dimensions first: for a different kind of value, as one-hot labels, that error helps most.
        if len(shape) != self._ndims[place]:
            raise InputTypeError(
                f"{self.what(place)}: got {len(shape)} dimensions (shape {shape}), expected "
                f"{self._ndims[place]}"
            )
        if dtype != self._dtypes[place]:
            self._check_dtype(place, dtype)
        for axis in self._broadcastable[place]:
            if shape[axis] != 1:
                raise InputValueError(
                    f"{self.what(place)}: got shape {shape}, expected length 1 along axis "
                    f"{axis}, which is broadcastable"
                )
        return value

    def what(self, place: int) -> str:
        """Return an input in words, for errors."""
        return f"input {self.labels[place]} of {self._name}"

    def _converted(self, place: int, value: Any) -> Any:
        if isinstance(value, Data):
            return value
        if isinstance(value, np.ndarray):
            return unmasked(value, self.what(place))
        if self._strict[place]:
            raise InputTypeError(
                f"{self.what(place)}: got {type(value).__name__}, expected an ndarray or Data, "
                f"because it is declared strict"
            )
        source = RowSource.of(value) if place < len(self._row_axes) else None
        if source is not None:
            if self._row_axes[place]:
                raise InputTypeError(
                    f"{self.what(place)}: got {shown(value)}, of which rows are read along axis 0, "
                    f"but row_axis is {self._row_axes[place]}; pass numpy.asarray(...) of it"
                )
            return source
        try:
            variable, downcast = self.variables[place], self._downcasts[place]
            return np.asarray(variable.type.filter(value, allow_downcast=downcast))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputTypeError(
                f"{self.what(place)}: got {shown(value)}, expected {variable.type}: "
                f"{clipped(error)}"
            ) from None

    def _check_dtype(self, place: int, dtype: np.dtype) -> None:
        variable, label = self.variables[place], self.labels[place]
        if dtype.kind not in NUMERIC:
            raise InputTypeError(
                f"{self.what(place)}: got dtype {dtype}, expected {variable.dtype}: numbers"
            )
        if self._strict[place]:
            raise InputTypeError(
                f"{self.what(place)}: got dtype {dtype}, expected {variable.dtype}, because it is "
                f"declared strict"
            )
        if not self._downcasts[place] and upcast(variable.dtype, dtype.name) != variable.dtype:
            raise InputTypeError(
                f"{self.what(place)}: got dtype {dtype}, expected {variable.dtype} or a dtype "
                f"that converts to it without loss; convert an array with "
                f".astype({variable.dtype!r}), make a Data with data(..., var={label}, "
                f"force_cast=True), or build the function with allow_input_downcast=True"
            )


class Copy:
    """Copies an input into shared memory, in every call with this plan: if it `selects`, only the
    selected rows, in their order. `axis` is that of the rows, in the target too."""

    def __init__(self, place: int, target: np.ndarray, selects: bool, axis: int = 0) -> None:
        self.place = place
        self._target = np.moveaxis(target, axis, 0) if axis else target
        self._selects = selects
        self._axis = axis

    def __call__(self, value: Any, selection: Optional[Selection]) -> None:
        """Copy `value`, or its selected rows: each row once. Blocks until a source is read."""
        if self._axis:
            value = np.moveaxis(value, self._axis, 0)
        if isinstance(value, RowSource) and selection is not None:
            value.read(selection, self._target)
        elif not self._target.ndim:
            self._target[...] = value
        else:
            rows = selection.rows if self._selects and selection is not None else slice(None)
            copy_rows(value, rows, self._target)


class PlannedCall(Prepared):
    """A call, which can be repeated with other rows and other values of the same shapes."""

    copies: Sequence[Copy] = ()
    index_room: Optional[np.ndarray] = None
    selectors: Sequence[np.ndarray] = ()

    def close(self) -> None:
        """Drop references to shared memory: the act is forgotten, some of its arrays have moved."""
        self.copies = self.selectors = ()
        self.index_room = None


class Known(NamedTuple):
    """Lengths of accepted inputs, for checking selections."""

    lengths: List[int]
    is_minibatch: List[bool]


Extent = Tuple[Optional[Tuple[int, ...]], Tuple[Selector, ...], int]
"""The places of the wanted outputs, selectors by rank, and the number of slices."""

_WHOLE: Extent = (None, (), 1)


class Planner:
    """Plans the calls of one `Function`."""

    def __init__(self, function: Any, signature: Signature) -> None:
        self._function = function
        self._spec: FunctionSpec = function.spec
        self._number: int = function.number
        self._orders: Orders = function.orders
        self._signature = signature
        self._label = repr(function)
        self._known: Dict[Hashable, Known] = {}

    def prepare(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, place: int
    ) -> Tuple[PlannedCall, int]:
        """Check and plan a call, and copy its arrays; return the act, and the lowest row that it
        takes. At each `place` in a step, arrays are staged in other rooms."""
        values, token = self._signature.read(args, kwargs)
        self._orders.require_ready()
        find = self._orders.acts.find
        key: Tuple[Hashable, ...] = (self._number, place, token)
        if options is DEFAULT:
            call = find(key)
            if call is not None:
                for copy in call.copies:
                    copy(values[copy.place], None)
                return call, 0
        known = self._known.get(token)
        if known is None:
            values = [self._signature.accepted(i, value) for i, value in enumerate(values)]
            token, known = self._get_to_know(values)
            key = (self._number, place, token)
        selection: Optional[Selection] = None
        if known.lengths:
            labels = self._signature.labels
            selection = selection_for(options.batch, known.lengths, known.is_minibatch, labels)
        elif options.batch is not None:
            raise InputTypeError(
                f"{self._label} got batch, but has no scattered inputs to select from"
            )
        subset, _, batch_s, slices = options
        is_plain = subset is batch_s is None and type(slices) is int and slices == 1
        wanted, selectors, num_slices = _WHOLE if is_plain else self._checked(options)
        if options is not DEFAULT:
            if selectors:
                key += (all_ranges(selectors), *map(_kind_of, selectors))
            rows = selection and (selection.count, selection.step, selection.index is None)
            key += (num_slices, wanted, rows)
        call = find(key)
        if call is None:
            call = self._plan(values, selection, selectors, wanted, num_slices, place)
            self._orders.enter(call, key)
        for copy in call.copies:
            copy(values[copy.place], selection)
        for target, chosen in zip(call.selectors, selectors):
            target[...] = written(chosen)
        if call.index_room is not None and selection is not None:
            call.index_room[...] = selection.index
        return call, 0 if selection is None or selection.index is not None else selection.lowest

    def _checked(self, options: Options) -> Extent:
        wanted = self.wanted(options.output_subset)
        return wanted, self._selectors(options.batch_s), self._slices(options.num_slices, wanted)

    def _get_to_know(self, inputs: Sequence[Any]) -> Tuple[Tuple[Any, ...], Known]:
        """Return the token of accepted inputs, and their lengths."""
        scattered = inputs[: self._spec.n_scattered]
        is_minibatch = [isinstance(item, Data) and item.minibatch for item in scattered]
        lengths = [item.shape[axis] for item, axis in zip(scattered, self._spec.row_axes)]
        known = Known(lengths, is_minibatch)
        _, token = self._signature.read(inputs, {})
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[token] = known
        return token, known

    def _plan(
        self,
        inputs: Sequence[Any],
        selection: Optional[Selection],
        selectors: Sequence[Selector],
        wanted: Optional[Tuple[int, ...]],
        num_slices: int,
        place: int,
    ) -> PlannedCall:
        self._check_rows(selection, wanted)
        if num_slices > 1:
            self._function.before_slices()
        form = self._form(selectors, num_slices)
        self._orders.require_form(self._number, form)
        # Sliceable variables differ in length by rank.
        count = None if selection is None else selection.count
        if self._spec.sliceable if count is None else count < self._orders.size:
            self._orders.require_form(self._number, ROWLESS)
        n = self._spec.n_scattered
        copies: List[Copy] = []
        scattered: List[ScatteredInput] = []
        broadcast: List[ArrayRef] = []
        nbytes = 0
        for i, item in enumerate(inputs):
            axis = self._spec.row_axes[i] if i < n else 0
            shape = item.shape
            if i < n and selection is not None:
                shape = (*shape[:axis], selection.count, *shape[axis + 1 :])
            nbytes += item.dtype.itemsize * math.prod(shape)
            if isinstance(item, Data):
                ref = self._orders.store.ref(item)
                # It has one row for each entry of an index: nothing to select.
                selects = item.minibatch and selection is not None and selection.index is not None
                scattered.append(ScatteredInput(ref, item.minibatch, selects, axis))
            else:
                # The copy takes the selected rows alone.
                selects = i < n and selection is not None and not selection.covers(item.shape[axis])
                slot, what = (self._number, i, place), self._signature.what(i)
                target, ref = self._orders.store.room(slot, item.dtype, shape, what)
                copies.append(Copy(i, target, selects, axis))
                scattered.append(ScatteredInput(ref, selected=selects, axis=axis))
            if i >= n:
                broadcast.append(scattered.pop().array)
        index, rows = None, None
        if selection is not None:
            bounds = split_rows(selection.count, self._orders.size)
            needs_index = any(not item.selected for item in scattered)
            index, rows = self._orders.store.rows(selection, bounds, place, needs_index)
        staged = [
            self._orders.store.room(
                (self._number, "batch_s", rank, place), text.dtype, text.shape, "batch_s"
            )
            for rank, text in enumerate(written(chosen) for chosen in selectors)
        ]
        call = Call(
            function_id=self._number,
            form=form,
            rows=rows,
            scattered=tuple(scattered),
            broadcast=tuple(broadcast),
            outputs=wanted,
            num_slices=num_slices,
            selectors=tuple(
                StagedSelector(ref, isinstance(chosen, slice))
                for (_, ref), chosen in zip(staged, selectors)
            ),
        )
        planned = PlannedCall(call, self._function.label, nbytes)
        planned.copies, planned.index_room = copies, index
        planned.selectors = [target for target, _ in staged]
        return planned

    def _check_rows(
        self, selection: Optional[Selection], wanted: Optional[Tuple[int, ...]]
    ) -> None:
        """Refuse several rows of an input that is broadcastable along their axis, and a selection
        that leaves the master without the row that it needs."""
        if selection is None:
            return
        bounds = split_rows(selection.count, self._orders.size)
        ops = self._spec.output_ops
        wanted_ops = ops if wanted is None else [ops[i] for i in wanted]
        counts = [stop - start for start, stop in bounds]
        require_own_row(wanted_ops, counts, self._orders.master, self._label)
        if selection.count < 2:
            return
        signature = self._signature
        named = zip(signature.labels, signature.variables, self._spec.row_axes)
        for label, variable, axis in named:
            if variable.broadcastable[axis]:
                raise InputValueError(
                    f"input {label} of {self._label} has length 1 along axis {axis} by its type "
                    f"(it is broadcastable there), but {selection.count} rows are selected; list "
                    f"it in bcast_inputs, or declare it with more than one row"
                )

    def wanted(self, output_subset: Any) -> Optional[Tuple[int, ...]]:
        """Return the positions of the wanted outputs, checked; None for all."""
        if output_subset is None:
            return None
        count = len(self._spec.outputs)
        if isinstance(output_subset, np.ndarray):
            output_subset = output_subset.tolist()
        if not isinstance(output_subset, (list, tuple, range)):
            raise InputValueError(
                f"output_subset: got {shown(output_subset)}, expected a list of positions from 0 "
                f"to {count - 1}"
            )
        for position in output_subset:
            if not is_int(position) or not 0 <= position < count:
                raise InputValueError(
                    f"output_subset: got {shown(position)}, expected positions from 0 to "
                    f"{count - 1}"
                )
        return tuple(int(position) for position in output_subset)

    def _slices(self, num_slices: Any, wanted: Optional[Tuple[int, ...]]) -> int:
        num_slices = as_int(num_slices)
        if not is_int(num_slices) or num_slices < 1:
            raise InputValueError(
                f"num_slices: got {shown(num_slices)}, expected an int of at least 1"
            )
        if num_slices == 1:
            return 1
        if not self._spec.n_scattered and not self._spec.sliceable:
            raise InputValueError(
                f"num_slices: {self._label} has nothing to slice: no scattered inputs and no "
                f"sliceable_shareds"
            )
        ops = self._spec.output_ops
        for position in range(len(ops)) if wanted is None else wanted:
            if ops[position] is None:
                raise OpError(
                    f"output {position} of {self._label} has op None, which does not accumulate "
                    f"over slices; give it an op, or leave it out with output_subset"
                )
        return min(int(num_slices), MOST_SLICES)

    def _selectors(self, batch_s: Any) -> Tuple[Selector, ...]:
        """Return one selector per rank, or () for all rows everywhere."""
        if batch_s is not None and not self._spec.sliceable:
            raise InputTypeError(
                f"{self._label} got batch_s, but has no sliceable_shareds; list them in function()"
            )
        return selectors_for(batch_s, self._orders.size)

    def _form(self, selectors: Sequence[Selector], num_slices: int) -> Form:
        if num_slices == 1 and not selectors:
            return PLAIN
        select = None
        if self._spec.sliceable:
            select = "range" if all_ranges(selectors) else "index"
        return Form(accumulate=num_slices > 1 and bool(self._spec.accumulated), select=select)


def _kind_of(selector: Selector) -> Hashable:
    """Return what the memory of a selector depends on."""
    return None if isinstance(selector, slice) else (len(selector), selector.dtype)
