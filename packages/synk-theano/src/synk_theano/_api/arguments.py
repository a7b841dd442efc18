"""Arguments of collectives, checked and in one form: variables, values, rows and operations."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from synk_theano._graph.shared import require_shared, value_of
from synk_theano._graph.values import host_type, is_array, on_host
from synk_theano._plan.ops import REDUCE_OPS, check_dtype, is_through_host, normalize
from synk_theano._plan.rows import Selection, selection_for
from synk_theano._text import clipped, shown
from synk_theano._wire.data import Data, unmasked
from synk_theano.exceptions import InputTypeError, InputValueError

SCATTER = "scatter() or batch"


def listed_variables(shared_vars: Any) -> Tuple[List[Any], bool]:
    """Return the variables as a list, and whether a single one was given."""
    single = not isinstance(shared_vars, (list, tuple))
    variables = [shared_vars] if single else list(shared_vars)
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
    return variables, single


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
            _require_broadcastable(variable, value.shape)
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


def _require_broadcastable(variable: Any, shape: Tuple[int, ...]) -> None:
    for axis, broadcastable in enumerate(variable.broadcastable):
        if broadcastable and shape[axis] != 1:
            raise InputValueError(
                f"value for {variable}: got shape {shape}, expected length 1 along axis {axis}, "
                f"which is broadcastable"
            )


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
