"""The arguments of `function(...)` -> one checked description; mistakes in them raise here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from synk_core._plan.ops import OUTPUT_OPS, UPDATE_OPS, check_dtype, is_through_host, normalize
from synk_core._plan.rows import is_int
from synk_core._text import shown
from synk_core._warn import Place, user_place
from synk_core.engine import NAME, TITLE, In, SharedVariable, T, Variable, is_random, library
from synk_core.exceptions import SpecError


@dataclass(frozen=True)
class FunctionSpec:
    """A function as written, in canonical form.

    Attributes:
        inputs: scattered, then broadcast ones (variables, or `In`).
        row_axes: for each scattered input, the axis along which its rows lie.
        host_outputs: for each output, whether it is collected through host memory even if it is
            computed on a device: "c_avg" and the like.
        returns: form of the results: "single", "list" or "none".
        updates: (shared variable, new value, op over slices).
        accumulated: the updates, default ones included, that a sliced call applies once, at its
            end: all but those of random states.
        kwargs: arguments passed on to the engine's `function`.
        built_at: the user's line.
    """

    inputs: Tuple[Any, ...]
    row_axes: Tuple[int, ...]
    outputs: Tuple[Any, ...]
    output_ops: Tuple[Optional[str], ...]
    host_outputs: Tuple[bool, ...]
    returns: str
    updates: Tuple[Tuple[Any, Any, str], ...]
    givens: Tuple[Tuple[Any, Any], ...]
    sliceable: Tuple[Any, ...]
    accumulated: Tuple[Tuple[Any, Any, str], ...]
    name: Optional[str]
    kwargs: Dict[str, Any]
    built_at: Optional[Place] = None

    @property
    def n_scattered(self) -> int:
        return len(self.row_axes)

    @property
    def variables(self) -> Tuple[Any, ...]:
        return tuple(map(_variable_of, self.inputs))

    @property
    def expressions(self) -> List[Any]:
        """Outputs, new values of updates, and replacements of givens, in this order."""
        values = [value for _, value, _ in self.updates]
        return [*self.outputs, *values, *(value for _, value in self.givens)]


def _variable_of(declared: Any) -> Any:
    return declared.variable if isinstance(declared, In) else declared


def unnamed(function_id: int) -> str:
    """Return the name in messages of a function without a name."""
    return f"function {function_id}"


def make_spec(
    inputs: Any,
    outputs: Any = None,
    bcast_inputs: Any = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Any = None,
    name: Optional[str] = None,
    row_axis: Optional[Mapping[Any, Any]] = None,
    **kwargs: Any,
) -> FunctionSpec:
    """Check and canonicalize the arguments of `function()`."""
    _require_known(kwargs)
    if name is not None and not isinstance(name, str):
        raise SpecError(f"name: got {shown(name)}, expected a str or None")
    scattered = _inputs(inputs, "inputs")
    broadcast = _inputs(bcast_inputs, "bcast_inputs")
    for place, symbol in enumerate(map(_variable_of, scattered)):
        if symbol.type.ndim == 0:
            raise SpecError(
                f"inputs[{place}] ({symbol}) is a scalar and has no rows to scatter; "
                f"list it in bcast_inputs"
            )
    found, returns = _outputs(outputs)
    variables, ops, through_host = zip(*found) if found else ((), (), ())
    sliceable = _sequence(sliceable_shareds, "sliceable_shareds")
    canonical_updates = _updates(updates)
    canonical_givens = _givens(givens)
    for place, variable in enumerate(sliceable):
        _require_shared(variable, f"sliceable_shareds[{place}]")
        if variable.type.ndim == 0:
            raise SpecError(f"sliceable_shareds[{place}] ({variable}) is a scalar: it has no rows")
        if any(variable is key for key, _ in canonical_givens):
            raise SpecError(f"{variable} is listed in sliceable_shareds and replaced in givens")
        if any(variable is target for target, _, _ in canonical_updates):
            raise SpecError(
                f"{variable} is listed in sliceable_shareds and updated; a slice of it cannot "
                f"become its new value. Update another shared variable"
            )
    return FunctionSpec(
        inputs=tuple(scattered + broadcast),
        row_axes=_row_axes(row_axis, scattered),
        outputs=variables,
        output_ops=ops,
        host_outputs=through_host,
        returns=returns,
        updates=canonical_updates,
        givens=canonical_givens,
        sliceable=tuple(sliceable),
        accumulated=tuple(update for update in canonical_updates if not is_random(update[0])),
        name=name,
        kwargs=kwargs,
        built_at=user_place(),
    )


def _require_known(names: Mapping[str, Any]) -> None:
    """Raise `SpecError`, with the likeliest cure, for an unknown keyword."""
    parameters = inspect.signature(library.function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return  # the user's replacement, which raises itself
    known = sorted({*parameters, *inspect.signature(make_spec).parameters} - {"kwargs"})
    for name in [name for name in names if name not in known]:
        near = difflib.get_close_matches(name, known, 1)
        raise SpecError(
            f"function() got an unexpected keyword argument {name!r}"
            + (f"; did you mean {near[0]}=?" if near else f", expected one of {known}")
        )


def _sequence(value: Any, what: str) -> List[Any]:
    """Return the items of a list or tuple, or the pairs of a dict."""
    if value is None or isinstance(value, (list, tuple)):
        return list(value or ())
    if isinstance(value, Mapping) and what in ("updates", "givens"):
        return list(value.items())
    raise SpecError(f"{what}: got {type(value).__name__}, expected a list or tuple")


def _inputs(value: Any, what: str) -> List[Any]:
    items = _sequence(value, what)
    for place, item in enumerate(items):
        if isinstance(item, In):
            if item.value is not None or item.update is not None:
                raise SpecError(
                    f"{what}[{place}]: {NAME}.In with a value or an update is not supported; "
                    f"use a shared variable"
                )
            if item.mutable:
                raise SpecError(
                    f"{what}[{place}]: {NAME}.In(mutable=True) is not supported, because all ranks "
                    f"read inputs from the same memory"
                )
        item = _variable_of(item)
        if isinstance(item, SharedVariable) or not isinstance(item, Variable):
            raise SpecError(
                f"{what}[{place}]: got {shown(item)} of type {type(item).__name__}, expected a "
                f"{TITLE} variable such as T.matrix() (shared variables are implicit inputs: not "
                f"listed)"
            )
        # Sparse matrices have a format; PyTensor's are tensors, too.
        if not hasattr(item.type, "broadcastable") or hasattr(item.type, "format"):
            raise SpecError(
                f"{what}[{place}]: got {item} of type {item.type}, expected a tensor, whose rows "
                f"can be shared; pass data, indices and indptr of a sparse matrix, or keep it in a "
                f"{TITLE} shared variable"
            )
    return items


def _row_axes(row_axis: Any, scattered: Sequence[Any]) -> Tuple[int, ...]:
    if row_axis is not None and not isinstance(row_axis, Mapping):
        raise SpecError(f"row_axis: got {shown(row_axis)}, expected a dict such as {{x: 1}}")
    variables = list(map(_variable_of, scattered))
    axes = [0] * len(variables)
    for key, axis in (row_axis or {}).items():
        places = [i for i, variable in enumerate(variables) if variable is key]
        if not places:
            raise SpecError(f"row_axis: got {shown(key)}, expected variables listed in inputs")
        if not is_int(axis) or not -key.ndim <= axis < key.ndim:
            raise SpecError(
                f"row_axis: got axis {shown(axis)} for {key}, expected an int from 0 to "
                f"{key.ndim - 1}, because it has {key.ndim} dimensions"
            )
        axes[places[0]] = int(axis) % key.ndim
    return tuple(axes)


_Output = Tuple[Any, Optional[str], bool]


def _outputs(outputs: Any) -> Tuple[List[_Output], str]:
    if outputs is None:
        return [], "none"
    if isinstance(outputs, list) or (isinstance(outputs, tuple) and not _is_pair(outputs)):
        return [_output(item, f"outputs[{i}]") for i, item in enumerate(outputs)], "list"
    return [_output(outputs, "outputs")], "single"


def _is_pair(item: Any) -> bool:
    """Return whether a tuple is (variable, op) rather than several outputs."""
    return len(item) == 2 and (item[1] is None or isinstance(item[1], str))


def _output(item: Any, what: str) -> _Output:
    op: Any = "avg"
    if isinstance(item, tuple):
        if not _is_pair(item):
            raise SpecError(f"{what}: got {shown(item)}, expected a variable or (variable, op)")
        item, op = item
    if not isinstance(item, Variable):
        cure = ""
        if isinstance(item, Mapping):
            cure = ", or a list of these: of a dict give list(d.values())"
        elif hasattr(item, "get_output_for"):
            cure = "; a layer's output is lasagne.layers.get_output(layer)"
        raise SpecError(
            f"{what}: got {shown(item)} of type {type(item).__name__}, expected a "
            f"{TITLE} variable or (variable, op)" + cure
        )
    plain = normalize(op, OUTPUT_OPS, what)
    check_dtype(plain, getattr(item.type, "dtype", "object"), f"{what} ({item})")
    return item, plain, is_through_host(op)


def _updates(updates: Any) -> Tuple[Tuple[Any, Any, str], ...]:
    result = []
    for place, item in enumerate(_sequence(updates, "updates")):
        what = f"updates[{place}]"
        if not isinstance(item, (list, tuple)) or len(item) not in (2, 3):
            raise SpecError(
                f"{what}: got {shown(item)}, expected (shared variable, new value) or "
                f"(shared variable, new value, op)"
            )
        target, value = item[0], item[1]
        _require_shared(target, what)
        given = default_update_op(target) if len(item) == 2 or item[2] is None else item[2]
        op = str(normalize(given, UPDATE_OPS, what))
        if op != "last":
            check_dtype(op, getattr(target.type, "dtype", "object"), f"{what} ({target})")
        result.append((target, expression_of(target, value), op))
    return tuple(result)


def expression_of(target: Any, value: Any) -> Any:
    """Return the new value of an update, which may be a number or an array, as an expression."""
    return value if isinstance(value, Variable) else target.type.filter_variable(value)


def default_update_op(target: Any) -> str:
    """Return the default op of an update over slices: an average of integers is no integer."""
    dtype = getattr(target.type, "dtype", "")
    return "avg" if dtype.startswith(("float", "complex")) else "last"


def _givens(givens: Any) -> Tuple[Tuple[Any, Any], ...]:
    items = _sequence(givens, "givens")
    for place, item in enumerate(items):
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            raise SpecError(f"givens[{place}]: got {shown(item)}, expected (variable, replacement)")
    return tuple(
        (key, value if isinstance(value, Variable) else T.as_tensor_variable(value))
        for key, value in items
    )


def _require_shared(variable: Any, what: str) -> None:
    if not isinstance(variable, SharedVariable):
        raise SpecError(
            f"{what}: got {shown(variable)} of type {type(variable).__name__}, expected a "
            f"{TITLE} shared variable"
        )
