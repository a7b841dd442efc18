"""From a function's arguments to an act: checks, selection of rows, and plans for later calls.

Planning anew costs some hundred microseconds; a call whose inputs have the shapes and places of an
earlier one, with a batch of the same length, finds its act again and only copies what changed.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.inputs import Copy, Signature, tokens
from synk_core._graph.spec import FunctionSpec
from synk_core._master.acts import Prepared
from synk_core._master.orders import Orders
from synk_core._plan.arguments import DEFAULT, Options
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
from synk_core._text import shown
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
from synk_core.exceptions import InputTypeError, InputValueError, OpError

MOST_KNOWN = 256
"""Shapes of inputs that a function remembers."""

MOST_SLICES = 1 << 20
"""Slices at most: each rank makes a list of them, and no slice is smaller than a row."""


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
        self, values: Sequence[Any], options: Options, place: int
    ) -> Tuple[PlannedCall, int]:
        """Check and plan a call, and copy its arrays; return the act, and the lowest row that it
        takes. At each `place` in a step, arrays are staged in other rooms."""
        self._orders.require_ready()
        find = self._orders.acts.find
        token: Hashable = tokens(values)
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

    def _get_to_know(self, inputs: Sequence[Any]) -> Tuple[Hashable, Known]:
        """Return the token of accepted inputs, and their lengths."""
        scattered = inputs[: self._spec.n_scattered]
        is_minibatch = [isinstance(item, Data) and item.minibatch for item in scattered]
        lengths = [item.shape[axis] for item, axis in zip(scattered, self._spec.row_axes)]
        known = Known(lengths, is_minibatch)
        token = tokens(inputs)
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
