"""Updates of many variables as one computation on their elements, end to end in one vector.

An update rule moves each parameter in the same way: a network of 161 parameters makes some 700
small operations of it, and each costs more than its arithmetic. `flat_updates` finds updates that
compute the same elementwise expression, each from variables of its own, and makes one of them:

    new values = Unflatten(expression(Flatten(variables), ...))

The variables stay what they are, each with a value of its own. `Unflatten` gives views of one
vector, and `Flatten` finds that vector again if its inputs are still these views. A variable that
got another value meanwhile (by `set_value`, a collective, or the undoing of a failed call) is one
that `Flatten` has to copy, with the others, once.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from synk_core.engine import (
    DEVICES,
    FLATTENS,
    Apply,
    Constant,
    DimShuffle,
    Elemwise,
    Op,
    Reshape,
    SharedVariable,
    Subtensor,
    T,
    get_idx_list,
    get_mode,
    library,
)

from .shared import value_of
from .values import empty_like, in_c_order, is_array, is_device_type

LEAST_ON_HOST, LEAST_ON_DEVICE = 64, 8
"""Least number of updates that are computed together: fewer are not quicker so."""

ALIGNMENT = 128
"""Bytes. A part begins at a multiple of this, because libraries read several elements at once."""

_DEEPEST = 100
"""Operations from an update's value to its leaves; deeper expressions stay as they are."""

Shape = Tuple[int, ...]
Update = Tuple[Any, Any]


class Flatten(Op):  # type: ignore[misc] # engines have no types
    """The elements of arrays of these shapes, in C order, end to end in one vector.

    The result may share its inputs' memory, which the engine does not know: see `protected`.
    """

    __props__ = ("shapes",)

    def __init__(self, shapes: Tuple[Shape, ...]) -> None:
        self.shapes = shapes

    def make_node(self, *arrays: Any) -> Any:
        """Apply it to tensors of one dtype and device."""
        first = arrays[0].type
        options = {"context_name": first.context_name} if is_device_type(first) else {}
        base = type(first) if options else T.TensorType
        return Apply(self, arrays, [base(first.dtype, (False,), **options)()])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:  # noqa: ARG002
        """Find the vector that the inputs are parts of, or copy them into a new one."""
        whole = whole_of(inputs, self.shapes)
        outputs[0][0] = _joined(inputs, self.shapes) if whole is None else whole


class Unflatten(Op):  # type: ignore[misc] # engines have no types
    """The parts of a vector, as arrays of these types and shapes: views of it.

    The engine does not know that: it would copy each part.
    """

    __props__ = ("shapes", "types")

    def __init__(self, shapes: Tuple[Shape, ...], types: Tuple[Any, ...]) -> None:
        self.shapes = shapes
        self.types = types

    def make_node(self, vector: Any) -> Any:
        return Apply(self, [vector], [type_() for type_ in self.types])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:
        """Make the views, and remember their vector."""
        (vector,) = inputs
        if not _is_fresh(node):
            vector = vector.copy()
        parts = _parts(vector, self.shapes)
        key = id(parts[0])
        first = weakref.ref(parts[0], lambda _gone: _wholes.pop(key, None))
        _wholes[key] = vector, [first, *map(weakref.ref, parts[1:])], self.shapes
        for output, part in zip(outputs, parts):
            output[0] = part


def _is_fresh(node: Any) -> bool:
    """Return whether a vector was computed for this `Unflatten` alone, in memory of its own."""
    (vector,) = node.inputs
    owner = vector.owner
    if owner is None or isinstance(owner.op, Flatten) or getattr(owner.op, "view_map", None):
        return False
    # With an engine that flattens, variables of compiled graphs have clients.
    taking = [getattr(taker, "op", None) for taker, _ in vector.clients]
    return sum(isinstance(op, Unflatten) for op in taking) == 1


def protected(mode: Any) -> Any:
    """Return a mode for functions with flat updates: each call computes into new memory.

    The engine does not know which results share memory, so nothing may be overwritten: no operation
    works in place, and no result is kept for the next call to reuse.
    """
    return get_mode(mode).excluding("inplace").clone(link_kwargs={"allow_gc": True})


# By the identity of a first part: the vector, all of its parts, and their shapes.
_wholes: Dict[int, Tuple[Any, List[weakref.ref[Any]], Tuple[Shape, ...]]] = {}


def whole_of(arrays: Sequence[Any], shapes: Tuple[Shape, ...]) -> Any:
    """Return the vector of which these arrays, in order, are all parts, in these shapes; or None.

    Compared by identity, because views of device arrays have no base.
    """
    vector, parts, found = _wholes.get(id(arrays[0]), (None, [], ()))
    if found != shapes:
        return None
    return vector if all(part() is array for part, array in zip(parts, arrays)) else None


def wholes_among(values: Sequence[Any]) -> Iterator[List[int]]:
    """Yield the places of a vector's parts, for each vector with all its parts in these values."""
    places = {id(value): place for place, value in enumerate(values)}
    for value in values:
        _, parts, _ = _wholes.get(id(value), (None, [], ()))
        found = [places.get(id(part())) for part in parts]
        if found and None not in found:
            yield found  # type: ignore[misc] # there is no None


def _joined(arrays: Sequence[Any], shapes: Sequence[Shape]) -> Any:
    whole = empty_like(arrays[0], (sum(map(math.prod, shapes)),), arrays[0].dtype)
    for array, shape, part in zip(arrays, shapes, _parts(whole, shapes)):
        if array.shape != shape:
            raise ValueError(
                f"got a variable of shape {array.shape}, expected {shape}, which it had when the "
                f"function was built; build the function again"
            )
        part[...] = in_c_order(array)
    return whole


def _parts(vector: Any, shapes: Iterable[Shape]) -> List[Any]:
    parts, end = [], 0
    for shape in shapes:
        begin, end = end, end + math.prod(shape)
        parts.append(vector[begin:end].reshape(shape))
    return parts


def is_flat(updates: Iterable[Sequence[Any]]) -> bool:
    """Return whether some updates come from `flat_updates`."""
    owners = (getattr(update[1], "owner", None) for update in updates)
    return any(owner is not None and isinstance(owner.op, Unflatten) for owner in owners)


class _Member:
    """An update that can be computed with others; TypeError if it is not known to be elementwise.

    Attributes:
        place: in the list of updates.
        skeleton: for each variable of the expression ("scalar", identity), ("leaf", dtype, device),
            ("piece", vector), or (operation, places of its inputs); equal for expressions that do
            the same with leaves and pieces.
        sources: of each, as `_source` returns them.
    """

    def __init__(self, place: int, target: Any, value: Any) -> None:
        self.place, self.target = place, target
        held = value_of(target)
        is_tensor = is_array(held) and held.ndim and held.size
        is_computed = getattr(value, "owner", None) is not None
        if not (is_tensor and is_computed and getattr(value, "dtype", None) == target.dtype):
            raise TypeError  # a variable's own value: there is nothing to compute
        self.shape: Shape = tuple(held.shape)
        self.skeleton: List[Tuple[Any, ...]] = []
        self.sources: List[Any] = []
        self._places: Dict[Any, int] = {}
        self._add(value, 0)

    def precedes(self, other: _Member) -> bool:
        """Return whether the other one's elements can lie right behind this one's."""
        size = math.prod(self.shape) * value_of(self.target).dtype.itemsize
        return size % ALIGNMENT == 0 and all(
            kind != "piece" or (mine[0] is theirs[0] and mine[2] == theirs[1])
            for (kind, *_), mine, theirs in zip(self.skeleton, self.sources, other.sources)
        )

    def _add(self, variable: Any, depth: int) -> int:
        """Return the place of a variable in the skeleton, and of its inputs before it."""
        if variable in self._places:
            return self._places[variable]
        entry: Tuple[Any, ...]
        source: Any
        kind, source = _source(variable, self.shape) if depth else ("", None)
        if kind == "scalar":
            entry = kind, _identity(source)
        elif kind == "leaf":
            if tuple(getattr(value_of(source), "shape", ())) != self.shape:
                raise TypeError
            entry = kind, source.dtype, _device(source)
        elif kind == "piece":
            entry = kind, source[0]
        else:
            node = variable.owner
            is_elementwise = node is not None and isinstance(node.op, Elemwise)
            if not is_elementwise or len(node.outputs) > 1 or depth > _DEEPEST:
                raise TypeError
            entry = node.op, *(self._add(each, depth + 1) for each in node.inputs)
        self._places[variable] = len(self.skeleton)
        self.skeleton.append(entry)
        self.sources.append(source)
        return self._places[variable]


def _source(variable: Any, shape: Shape) -> Tuple[str, Any]:
    """Return the role of a variable in an expression, and its source: a "scalar", of any
    dimensions; a "leaf", the value of a shared variable; a "piece" (vector, start, stop); else "",
    computed."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle) and node.inputs[0].ndim == 0:
        return "scalar", node.inputs[0]
    if isinstance(variable, Constant) and variable.data.size == 1 and all(variable.broadcastable):
        return "scalar", T.constant(variable.data.reshape(())) if variable.ndim else variable
    if variable.ndim == 0:
        return "scalar", variable
    leaf = _wherever(variable)
    if isinstance(leaf, SharedVariable):
        return "leaf", leaf
    piece = _piece_of(variable, shape)
    return "piece" if piece else "", piece


def _identity(scalar: Any) -> Any:
    """Return a key that is equal for scalars computed alike from the same variables."""
    if isinstance(scalar, Constant):
        return scalar.type, scalar.signature()
    node = scalar.owner
    if node is None:
        return scalar
    return node.op, node.outputs.index(scalar), *map(_identity, node.inputs)


def _wherever(variable: Any) -> Any:
    """Return the device variable of a copy in host memory; another variable itself."""
    node = variable.owner
    is_copy = node is not None and type(node.op).__name__ == "HostFromGpu"
    return node.inputs[0] if is_copy else variable


def _piece_of(variable: Any, shape: Shape) -> Optional[Tuple[Any, int, int]]:
    """Return (vector, start, stop) if a variable is ``vector[start:stop]`` in this shape."""
    node, wanted = variable.owner, None
    while node is not None and type(node.op).__name__ in ("Rebroadcast", "Reshape"):
        if isinstance(node.op, Reshape) and wanted is None:
            wanted = node.inputs[1]
        node = node.inputs[0].owner
    if wanted is not None and not (isinstance(wanted, Constant) and tuple(wanted.data) == shape):
        return None
    if node is None or not isinstance(node.op, Subtensor) or node.inputs[0].ndim != 1:
        return None
    (found,) = get_idx_list(node.inputs, node.op.idx_list) or (None,)
    bounds = [found.start, found.stop] if isinstance(found, slice) and found.step is None else []
    if not bounds or not all(isinstance(bound, Constant) for bound in bounds):
        return None
    start, stop = (int(bound.data) for bound in bounds)
    is_piece = start >= 0 and stop - start == math.prod(shape)
    return (_wherever(node.inputs[0]), start, stop) if is_piece else None


def flat_updates(updates: Iterable[Update], least: Optional[int] = None) -> List[Update]:
    """Return updates that compute the same, those of many variables together.

    Updates are computed together if they are the same elementwise expression, each of variables of
    the target's own shape, of parts of common vectors (as of a flat gradient) that follow one
    another, and of common scalars. The others stay as they are. Each element is computed by the
    same operations; a compiler may round a product and a sum together (FMA) in one form only.

    PyTensor puts operations together itself: with it all updates stay as they are.

    The values of the targets become views of one array, on their device. Each part of it begins at
    a multiple of 128 bytes: a variable whose size is no such multiple is the last of its array.

    Args:
        updates: pairs (shared variable, new value).
        least: number of updates from which on they are computed together; by default as many as
            are quicker so, more on processors than on GPUs.

    Returns:
        The updates, in the order of before, for `Runtime.function`; a function compiled by the
        engine alone may overwrite values in place, and must not have them.
    """
    flat = [(update[0], update[1]) for update in updates]
    if not FLATTENS or str(library.config.mode).lower().startswith("debug"):
        return flat  # DebugMode checks that results share no memory but as an op's `view_map` says
    runs: Dict[Any, List[List[_Member]]] = {}  # by their kind
    for place, (target, value) in enumerate(flat):
        try:
            member = _Member(place, target, value)
            key = tuple(member.skeleton), target.type.dtype, _device(target)
            kind = runs.setdefault(key, [[]])
        except TypeError:  # it is not elementwise, or has no hash
            continue
        if kind[-1] and not kind[-1][-1].precedes(member):
            kind.append([])
        kind[-1].append(member)
    joined: Dict[Any, Any] = {}
    for run in (run for kind in runs.values() for run in kind):
        quicker = LEAST_ON_DEVICE if is_device_type(run[0].target.type) else LEAST_ON_HOST
        if len(run) >= (quicker if least is None else max(least, 2)):
            for member, value in zip(run, _together(run, joined)):
                flat[member.place] = member.target, value
    return flat


def _device(variable: Any) -> Any:
    return getattr(variable.type, "context_name", "host")


def _together(run: Sequence[_Member], joined: Dict[Any, Any]) -> List[Any]:
    """Return the new values of a run's targets; `joined` has the vectors that exist already."""
    first = run[0]
    shapes = tuple(member.shape for member in run)
    values: List[Any] = []
    for (kind, *places), *sources in zip(first.skeleton, *(member.sources for member in run)):
        value = sources[0]
        if kind == "leaf":
            leaves = tuple(sources)
            if leaves not in joined:
                joined[leaves] = T.as_tensor_variable(Flatten(shapes)(*leaves))
            value = joined[leaves]
        elif kind == "piece":
            vector, start, _ = value
            value = vector[start : sources[-1][2]]
        elif kind != "scalar":
            value = kind(*(values[place] for place in places))
        values.append(value)
    value = values[-1]
    if is_device_type(first.target.type):
        value = DEVICES.to_device(value, first.target.type)
    results: List[Any] = Unflatten(shapes, tuple(m.target.type for m in run))(value)
    return results
