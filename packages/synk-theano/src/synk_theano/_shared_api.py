"""Collectives over shared variables, as the master offers them: checks first, then one command."""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from ._data import Data
from ._function import Launcher, staged_rows
from ._messages import ArrayRef, Collective
from ._ops import REDUCE_OPS, check_dtype, normalize
from ._plan import Selection, selection_for, split_rows
from ._shared_vars import require_shared, value_of
from .exceptions import InputTypeError, InputValueError

SCATTER = "scatter() or batch"


class VariableLauncher(Launcher, Protocol):
    def numbers(self, variables: Sequence[Any]) -> Tuple[int, ...]:
        """The variables' numbers; those that the workers do not have yet are sent first."""


class Collectives:
    """Collectives over one Theano shared variable or a list of them.

    All block until every rank has done its part.
    """

    def __init__(self, launcher: VariableLauncher) -> None:
        self._launcher = launcher

    def broadcast(self, shared_vars: Any, values: Any = None) -> None:
        """Give every rank the master's values, or `values`.

        Args:
            values: None, or one array or `Data` for each variable.

        Raises:
            NotSharedVariable, InputTypeError: bad arguments; nothing was sent.
        """
        variables, _ = _listed(shared_vars)
        arrays = None if values is None else _matched(shared_vars, variables, values)
        forms = [(value_of(v).shape, str(value_of(v).dtype)) for v in variables]
        with self._launcher.exclusive:
            refs = None if arrays is None else self._refs(arrays)
            self._run("broadcast", variables, values=refs, forms=forms)

    def scatter(self, shared_vars: Any, values: Any, batch: Any = None) -> None:
        """Split `values` along axis 0 over the ranks: contiguous shares, larger ones first.

        Args:
            values: one array or `Data` for each variable.
            batch: rows to use, as in calls.

        Raises:
            NotSharedVariable, InputTypeError, InputValueError, BatchError: nothing was sent.
        """
        variables, _ = _listed(shared_vars)
        arrays = _matched(shared_vars, variables, values)
        selection = _select_rows(variables, arrays, batch)
        bounds = split_rows(selection.count, self._launcher.size)
        with self._launcher.exclusive:
            rows = staged_rows(self._launcher, selection, bounds)
            self._run("scatter", variables, values=self._refs(arrays), rows=rows)

    def gather(self, shared_vars: Any, nd_up: int = 1) -> Any:
        """All ranks' values, in rank order, in the master.

        Args:
            nd_up: 1 stacks them along a new first axis, 0 concatenates them along axis 0, where
                lengths may differ.

        Returns:
            An array, or a tuple of arrays for a list of variables.
        """
        if nd_up not in (0, 1):
            raise InputValueError(f"nd_up: got {nd_up!r}, expected 0 or 1")
        variables, single = _listed(shared_vars)
        if nd_up == 0:
            _require_rows(variables, "gather(nd_up=0)")
        return _unlisted(self._run("gather", variables, nd_up=nd_up), single)

    def all_gather(self, shared_vars: Any) -> None:
        """Every rank's value becomes all ranks' values, concatenated along axis 0."""
        variables, _ = _listed(shared_vars)
        _require_rows(variables, "all_gather()")
        self._run("all_gather", variables)

    def reduce(self, shared_vars: Any, op: str = "avg", in_place: bool = True) -> Any:
        """Reduce all ranks' values into the master; workers' values stay.

        Args:
            op: avg, sum, max, min or prod.
            in_place: overwrite the master's value; otherwise return the result.

        Returns:
            None if `in_place`; else an array, or a tuple of arrays for a list of variables.
        """
        variables, single = _listed(shared_vars)
        op = _checked_op(op, variables)
        return _unlisted(self._run("reduce", variables, op=op, in_place=in_place), single)

    def all_reduce(
        self,
        shared_vars: Any,
        op: str = "avg",
        weights: Optional[Sequence[float]] = None,
    ) -> None:
        """Every rank's value becomes the reduction of all ranks' values.

        Args:
            op: avg, sum, max, min or prod.
            weights: one number per rank. ``avg`` is then ``sum(w * x) / sum(w)``: with
                ``weights=f.rows`` the average is exact for any split of the last call of ``f``.
                A rank of weight 0 contributes nothing, but gets the result, for every op.
        """
        variables, _ = _listed(shared_vars)
        op = _checked_op(op, variables)
        if weights is not None:
            weights = tuple(float(weight) for weight in weights)
            if len(weights) != self._launcher.size or min(weights) < 0 or sum(weights) <= 0:
                raise InputValueError(
                    f"weights: got {weights}, expected one non-negative number for each of "
                    f"{self._launcher.size} ranks, not all of them 0"
                )
        self._run("all_reduce", variables, op=op, weights=weights)

    def set_value(self, rank: int, shared_vars: Any, values: Any, batch: Any = None) -> None:
        """Set the values of one rank.

        Args:
            values: one array or `Data` for each variable.
            batch: rows of `values` to use, as in calls.
        """
        self._check_rank(rank)
        variables, _ = _listed(shared_vars)
        arrays = _matched(shared_vars, variables, values)
        selection = None if batch is None else _select_rows(variables, arrays, batch)
        with self._launcher.exclusive:
            rows = None
            if selection is not None:
                rows = staged_rows(self._launcher, selection, ((0, selection.count),))
            self._run("set_value", variables, values=self._refs(arrays), rank=rank, rows=rows)

    def get_value(self, rank: int, shared_vars: Any) -> Any:
        """The values of one rank: an array, or a tuple of arrays for a list of variables."""
        self._check_rank(rank)
        variables, single = _listed(shared_vars)
        return _unlisted(self._run("get_value", variables, rank=rank), single)

    def get_shapes(self, shared_vars: Any) -> Any:
        """The shapes on all ranks, a tuple in rank order; a tuple of those for a list."""
        variables, single = _listed(shared_vars)
        return _unlisted(self._run("get_shapes", variables), single)

    def get_lengths(self, shared_vars: Any) -> Any:
        """The lengths along axis 0 on all ranks, in rank order; a tuple of those for a list."""
        variables, single = _listed(shared_vars)
        _require_rows(variables, "get_lengths()")
        shapes = self._run("get_shapes", variables)
        return _unlisted([tuple(shape[0] for shape in ranks) for ranks in shapes], single)

    def _run(self, kind: str, variables: Sequence[Any], **arguments: Any) -> Any:
        numbers = self._launcher.numbers(variables)
        return self._launcher.run(Collective(kind, numbers, arguments))

    def _check_rank(self, rank: int) -> None:
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self._launcher.size:
            raise InputValueError(
                f"rank: got {rank!r}, expected an int from 0 to {self._launcher.size - 1}"
            )

    def _refs(self, values: Sequence[Any]) -> List[ArrayRef]:
        return [
            value.ref() if isinstance(value, Data) else self._launcher.stage(("value", i), value)
            for i, value in enumerate(values)
        ]


def _listed(shared_vars: Any) -> Tuple[List[Any], bool]:
    """The variables as a list, and whether only one was given, not a list."""
    single = not isinstance(shared_vars, (list, tuple))
    variables = [shared_vars] if single else list(shared_vars)
    for variable in variables:
        require_shared(variable)
        if not isinstance(value_of(variable), np.ndarray):
            raise InputTypeError(
                f"{variable} holds a {type(value_of(variable)).__name__}, expected a shared "
                f"variable with an array (states of random streams stay on their ranks)"
            )
    storages = [id(variable.container.storage) for variable in variables]
    if len(set(storages)) != len(storages):
        raise InputValueError(f"got the same shared variable twice: {variables}")
    return variables, single


def _unlisted(results: Any, single: bool) -> Any:
    if results is None:
        return None
    return results[0] if single else tuple(results)


def _matched(shared_vars: Any, variables: Sequence[Any], values: Any) -> List[Any]:
    """One value per variable, each a `Data` or an array of the variable's dtype and ndim."""
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
            _require_broadcastable(variable, value.shape)
            matched.append(value)
            continue
        try:
            downcast = variable.container.allow_downcast
            array = variable.type.filter(value, strict=False, allow_downcast=downcast)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"value for {variable}: {error}") from None
        matched.append(np.asarray(array))
    return matched


def _require_broadcastable(variable: Any, shape: Tuple[int, ...]) -> None:
    for axis, broadcastable in enumerate(variable.broadcastable):
        if broadcastable and shape[axis] != 1:
            raise InputValueError(
                f"value for {variable}: got shape {shape}, expected length 1 along axis {axis}, "
                f"which is broadcastable"
            )


def _select_rows(variables: Sequence[Any], arrays: Sequence[Any], batch: Any) -> Selection:
    _require_rows(variables, SCATTER)
    names = [str(variable) for variable in variables]
    return selection_for(batch, [len(a) for a in arrays], [False] * len(arrays), names)


def _require_rows(variables: Sequence[Any], what: str) -> None:
    for variable in variables:
        if variable.type.ndim == 0:
            raise InputTypeError(f"{variable} is a scalar, but {what} works along axis 0")
        if variable.broadcastable[0] and what in ("all_gather()", SCATTER):
            raise InputTypeError(
                f"{variable} has length 1 along axis 0 by its type (it is broadcastable there), "
                f"but {what} changes that length"
            )


def _checked_op(op: Any, variables: Sequence[Any]) -> str:
    name = str(normalize(op, REDUCE_OPS, "op"))
    for variable in variables:
        check_dtype(name, str(variable.dtype), f"reduction of {variable}")
    return name
