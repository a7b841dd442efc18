"""Collectives over shared variables, as the master offers them: checks first, then one act."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.shared import require_shared, value_of
from synk_core._graph.values import host_type, is_array, is_elsewhere, on_host
from synk_core._master.acts import Prepared
from synk_core._master.orders import Orders
from synk_core._master.store import ALONE, Standing
from synk_core._plan.collectives import COLLECTIVES
from synk_core._plan.conversion import unmasked
from synk_core._plan.ops import REDUCE_OPS, check_dtype, is_through_host, normalize
from synk_core._plan.rows import Selection, is_int, kept, selection_for, split_rows
from synk_core._text import clipped, shown
from synk_core._wire.data import Data
from synk_core._wire.messages import ArrayRef, Collective
from synk_core.exceptions import InputTypeError, InputValueError

from .function import Delayed, Function

SCATTER = "scatter() or batch"

Arguments = Dict[str, Any]

Check = Callable[[Sequence[Any]], Optional[Arguments]]
"""Checks a collective of these variables; returns arguments of the act, if there are any."""

Stage = Callable[[Sequence[Any], Standing], Tuple[Arguments, int]]
"""Stages arrays; returns further arguments, and the lowest row that the act takes."""

Returns = Callable[[bool, Any], Any]
"""Makes the caller's result, given whether there is a single variable, and the master's result."""


def _values(single: bool, results: Any) -> Any:
    if results is None:
        return None
    return results[0] if single else tuple(results)


def _nothing(_single: bool, _result: Any) -> None:
    return None


def _lengths(single: bool, shapes: Any) -> Any:
    return _values(single, [tuple(shape[0] for shape in ranks) for ranks in shapes])


class Collectives:
    """Collectives over one Theano shared variable or a list of them: all change, or none.

    All block until every rank has done its part. Arguments and results are those of the functions
    of `synkhronos` with the same names.

    Raises:
        NotSharedVariable, InputTypeError, InputValueError, BatchError: nothing was sent.
    """

    _delays = False

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def broadcast(self, shared_vars: Any, values: Any = None) -> Any:
        """Copy the master's values to all ranks; see `synkhronos.broadcast`."""

        def stage(variables: Sequence[Any], standing: Standing) -> Tuple[Arguments, int]:
            if values is not None:
                arrays = matched_values(shared_vars, variables, values)
                return {"values": self._refs(arrays, standing.place), "forms": None}, 0
            forms = tuple((value_of(v).shape, str(value_of(v).dtype)) for v in variables)
            # Earlier acts of the step may change them: then the master broadcasts the forms too.
            return {"values": None, "forms": None if standing.place else forms}, 0

        return self._perform("broadcast", shared_vars, stage=stage)

    def scatter(self, shared_vars: Any, values: Any, batch: Any = None) -> Any:
        """Split `values` over the ranks; see `synkhronos.scatter`."""
        batch = kept(batch)

        def stage(variables: Sequence[Any], standing: Standing) -> Tuple[Arguments, int]:
            place = standing.place
            arrays = matched_values(shared_vars, variables, values)
            if batch is None:
                require_rows(variables, SCATTER)
                selections = [Selection(len(array)) for array in arrays]
            else:
                selections = [selected_rows(variables, arrays, batch)]
            rows = []
            for selection in selections:
                bounds = split_rows(selection.count, self._orders.size)
                rows.append(self._orders.store.rows(selection, bounds, place)[1])
            several = tuple(rows * (len(arrays) // len(rows)))
            return {"values": self._refs(arrays, place), "rows": several}, selections[0].lowest

        return self._perform("scatter", shared_vars, stage=stage)

    def gather(self, shared_vars: Any, nd_up: int = 1) -> Any:
        """Return all ranks' values in the master; see `synkhronos.gather`."""

        def check(variables: Sequence[Any]) -> Arguments:
            if not is_int(nd_up) or nd_up not in (0, 1):
                raise InputValueError(f"nd_up: got {shown(nd_up)}, expected 0 or 1")
            if nd_up == 0:
                require_rows(variables, "gather(nd_up=0)")
            return {"nd_up": nd_up}

        return self._perform("gather", shared_vars, check, options=(nd_up,), returns=_values)

    def all_gather(self, shared_vars: Any) -> Any:
        """Replace every rank's value by all ranks' values, concatenated along axis 0."""
        check = partial(require_rows, what="all_gather()")
        return self._perform("all_gather", shared_vars, check, options=())

    def reduce(self, shared_vars: Any, op: str = "avg", in_place: bool = True) -> Any:
        """Reduce all ranks' values into the master; see `synkhronos.reduce`."""

        def check(variables: Sequence[Any]) -> Arguments:
            return {"op": checked_op(op, variables), "in_place": bool(in_place), **way_of(op)}

        options = op, in_place
        return self._perform("reduce", shared_vars, check, options=options, returns=_values)

    def all_reduce(self, shared_vars: Any, op: str = "avg", weights: Any = None) -> Any:
        """Reduce all ranks' values on every rank; see `synkhronos.all_reduce`."""

        def check(variables: Sequence[Any]) -> Arguments:
            given = {"op": checked_op(op, variables), **way_of(op)}
            if not isinstance(weights, Function):
                given["weights"] = self._checked_weights(weights)
            elif not weights.belongs_to(self._orders):
                raise InputValueError(f"weights: {weights!r} belongs to another runtime")
            return given

        def stage(_variables: Sequence[Any], standing: Standing) -> Tuple[Arguments, int]:
            if weights.number in standing.called:
                # Its rows will be known when the step has come to it.
                return {"weights": None, "weights_of": weights.number}, 0
            return {"weights": _rows_of(weights)}, 0

        if isinstance(weights, Function):
            return self._perform("all_reduce", shared_vars, check, stage)
        options = (op,) if weights is None else None
        return self._perform("all_reduce", shared_vars, check, options=options)

    def set_value(self, rank: int, shared_vars: Any, values: Any, batch: Any = None) -> Any:
        """Set the values of one rank; see `synkhronos.set_value`."""
        batch = kept(batch)

        def stage(variables: Sequence[Any], standing: Standing) -> Tuple[Arguments, int]:
            place = standing.place
            arrays = matched_values(shared_vars, variables, values)
            rows, origin = None, 0
            if batch is not None:
                selection = selected_rows(variables, arrays, batch)
                bounds = ((0, selection.count),)
                _, rows = self._orders.store.rows(selection, bounds, place)
                origin = selection.lowest
            return {"values": self._refs(arrays, place), "rows": rows}, origin

        return self._perform("set_value", shared_vars, self._of_rank(rank), stage)

    def get_value(self, rank: int, shared_vars: Any) -> Any:
        """Return the values of one rank: an array, or a tuple of arrays for a list of variables."""
        check = self._of_rank(rank)
        return self._perform("get_value", shared_vars, check, options=(rank,), returns=_values)

    def get_shapes(self, shared_vars: Any) -> Any:
        """Return the shapes on all ranks, a tuple in rank order; a tuple of those for a list."""
        return self._perform("get_shapes", shared_vars, options=(), returns=_values)

    def get_lengths(self, shared_vars: Any) -> Any:
        """Return the lengths along axis 0 in rank order; a tuple of those for a list."""
        check = partial(require_rows, what="get_lengths()")
        return self._perform("get_shapes", shared_vars, check, options=("l",), returns=_lengths)

    def _perform(
        self,
        kind: str,
        shared_vars: Any,
        check: Optional[Check] = None,
        stage: Optional[Stage] = None,
        options: Optional[Tuple[Hashable, ...]] = None,
        returns: Optional[Returns] = None,
    ) -> Any:
        """Perform the collective on all ranks, or in a step; return its result, or what the step
        performs. `options` of the user make the act with the variables; None: they do not."""
        orders, single = self._orders, not isinstance(shared_vars, (list, tuple))
        if self._delays:
            prepare = self._prepare(kind, shared_vars, check, stage, options)
            return Delayed(orders, prepare, partial(returns or _nothing, single))
        with orders.lock:
            orders.require_ready()
            act, origin = orders.acts.find(self._key(kind, shared_vars, options)), 0
            if act is None:
                prepare = self._prepare(kind, shared_vars, check, stage, options)
                act, origin = prepare(ALONE)
            (result,) = orders.perform((act,), (origin,))
        return None if returns is None else returns(single, result)

    def _key(self, kind: str, shared_vars: Any, options: Any) -> Hashable:
        """Return the key of an act whose arguments have been checked before; None if none has."""
        if options is None:
            return None
        try:
            several = shared_vars if isinstance(shared_vars, (list, tuple)) else (shared_vars,)
            numbers = self._orders.known_numbers(several)
            key = (kind, numbers, options, *map(type, options))
            hash(key)
        except (AttributeError, TypeError):  # no variables; an option that is no constant
            return None
        return None if None in numbers else key

    def _prepare(
        self,
        kind: str,
        shared_vars: Any,
        check: Optional[Check],
        stage: Optional[Stage],
        options: Optional[Tuple[Hashable, ...]],
    ) -> Callable[[Standing], Tuple[Prepared, int]]:
        """Check a collective; return what stages and numbers it, given its position in a step."""
        variables = listed_variables(shared_vars)
        checked = (check and check(variables)) or {}

        def prepare(standing: Standing) -> Tuple[Prepared, int]:
            orders = self._orders
            orders.require_open()
            more, origin = ({}, 0) if stage is None else stage(variables, standing)
            given = {**checked, **more}
            numbers = orders.numbers(variables)
            if COLLECTIVES[kind].on_devices and any(is_elsewhere(value_of(v)) for v in variables):
                # For all ranks: to others the context may be that of their default device.
                given["through_host"] = True
            key = self._key(kind, shared_vars, options)
            if key is None and given.get("values") is None:  # they are of this act alone
                key = (kind, numbers, *given.items())
            act = orders.acts.find(key)
            if act is None:
                act = Prepared(Collective(kind, numbers, given), f"{kind}()")
                orders.enter(act, key)
            return act, origin

        return prepare

    def _checked_weights(self, weights: Any) -> Optional[Tuple[float, ...]]:
        if weights is None:
            return None
        try:
            numbers = tuple(float(weight) for weight in weights)
        except (TypeError, ValueError, OverflowError):
            raise InputTypeError(
                f"weights: got {shown(weights)}, expected a function of this runtime (of a "
                f"TrainFunction, its grad_function), or one number for each of "
                f"{self._orders.size} ranks"
            ) from None
        finite = all(0 <= number < np.inf for number in (*numbers, sum(numbers)))
        if len(numbers) != self._orders.size or not finite or not any(numbers):
            raise InputValueError(
                f"weights: got {shown(numbers)}, expected one non-negative number for each of "
                f"{self._orders.size} ranks, not all of them 0"
            )
        return numbers

    def _of_rank(self, rank: int) -> Check:
        if not is_int(rank) or not 0 <= rank < self._orders.size:
            raise InputValueError(
                f"rank: got {shown(rank)}, expected an int from 0 to {self._orders.size - 1}"
            )
        return lambda _variables: {"rank": int(rank)}

    def _refs(self, values: Sequence[Any], place: int) -> List[ArrayRef]:
        refs = []
        for i, value in enumerate(values):
            if isinstance(value, Data):
                refs.append(self._orders.store.ref(value))
                continue
            slot, what = ("value", i, place), f"value {i} of a collective"
            target, ref = self._orders.store.room(slot, value.dtype, value.shape, what)
            target[...] = value
            refs.append(ref)
        return refs


class DelayedCollectives(Collectives):
    """The same for `step()`: methods return a `Delayed`, which the step performs."""

    _delays = True


def _rows_of(function: Function) -> Tuple[int, ...]:
    """Return the rows of a function's last call, by rank; raise if it had none."""
    rows = function.rows
    if rows is None or not any(rows):
        raise InputValueError(
            f"all_reduce(weights=f): {function!r} "
            + ("was not called yet" if rows is None else "had no rows in its last call")
            + ", so there is nothing to average; call it with rows first"
        )
    return rows


def listed_variables(shared_vars: Any) -> List[Any]:
    """Return the variables, which may be a single one, as a list."""
    variables = list(shared_vars) if isinstance(shared_vars, (list, tuple)) else [shared_vars]
    if not variables:
        raise InputValueError("got an empty list, expected at least one shared variable")
    for variable in variables:
        require_shared(variable)
        if not is_array(value_of(variable)):
            raise InputTypeError(
                f"{variable} holds a {type(value_of(variable)).__name__}, expected a shared "
                f"variable with an array (states of random streams stay on their ranks)"
            )
    storages = [id(variable.container.storage) for variable in variables]
    if len(set(storages)) != len(storages):
        raise InputValueError(f"got the same shared variable twice: {variables}")
    return variables


def matched_values(shared_vars: Any, variables: Sequence[Any], values: Any) -> List[Any]:
    """Return one value per variable, a `Data` or an array of the variable's dtype and ndim."""
    single = not isinstance(shared_vars, (list, tuple))
    items = [values] if single else values
    if not isinstance(items, (list, tuple)) or len(items) != len(variables):
        raise InputTypeError(
            f"values: got {type(values).__name__}, expected a list of {len(variables)} values, "
            f"one for each shared variable"
        )
    matched: List[Any] = []
    for variable, value in zip(variables, items):
        if isinstance(value, Data):
            if value.ndim != variable.ndim or str(value.dtype) != variable.dtype:
                raise InputTypeError(
                    f"value for {variable}: got {value!r}, expected dtype {variable.dtype} with "
                    f"{variable.ndim} dimensions"
                )
            for axis, is_one in enumerate(variable.broadcastable):
                if is_one and value.shape[axis] != 1:
                    raise InputValueError(
                        f"value for {variable}: got shape {value.shape}, expected length 1 along "
                        f"axis {axis}, which is broadcastable"
                    )
            matched.append(value)
            continue
        try:
            downcast = variable.container.allow_downcast
            if isinstance(value, np.ndarray):
                value = unmasked(value, f"value for {variable}")
            array = host_type(variable).filter(on_host(value), False, downcast)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputTypeError(f"value for {variable}: {clipped(error)}") from None
        except AttributeError:  # Theano's, of arrays of objects
            raise InputTypeError(
                f"value for {variable}: got {shown(value)}, expected numbers"
            ) from None
        matched.append(np.asarray(array))
    return matched


def selected_rows(variables: Sequence[Any], arrays: Sequence[Any], batch: Any) -> Selection:
    require_rows(variables, SCATTER)
    names = [str(variable) for variable in variables]
    return selection_for(batch, [len(a) for a in arrays], [False] * len(arrays), names)


def require_rows(variables: Sequence[Any], what: str) -> None:
    for variable in variables:
        if variable.type.ndim == 0:
            raise InputTypeError(f"{variable} is a scalar, but {what} works along axis 0")
        if variable.broadcastable[0] and what in ("all_gather()", SCATTER):
            raise InputTypeError(
                f"{variable} has length 1 along axis 0 by its type (it is broadcastable there), "
                f"but {what} changes that length"
            )


def way_of(op: Any) -> Dict[str, bool]:
    """Return the argument that sends a collective through host memory, if the op asks for it."""
    return {"through_host": True} if is_through_host(op) else {}


def checked_op(op: Any, variables: Sequence[Any]) -> str:
    name = str(normalize(op, REDUCE_OPS, "op"))
    for variable in variables:
        cure = "use 'sum', 'max', 'min' or 'prod', or make it a variable of floats"
        check_dtype(name, str(variable.dtype), f"reduction of {variable}", cure)
    return name
