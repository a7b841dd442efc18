"""Vectors that a function joins from parts, such as the gradient of all parameters.

A function is built again here so that it reports each part as soon as that is computed. Ranks
reduce the first parts while the function computes the others.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import accumulate
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

from theano.gof import Op

from synk_core.adapting import FlatFunction, concatenated, flatten, is_flat_able, rebuild
from synk_theano._linking import linked_by_kind

from .rewriting import Rewriting

MOST_PIECES = 8
"""Pieces of a vector that are reduced one by one, besides those that large parts make."""

SMALLEST_PIECE = 4 << 20
"""Bytes of a piece; a larger part is in no piece with others."""


class Aim(Protocol):
    """The place to which an execution copies the parts.

    Attributes:
        takes_parts: whether large parts may stay where they are computed.
        started: whether other ranks know of some.
    """

    vector: Any
    takes_parts: bool
    started: bool

    def ready(self, sources: Sequence[Any]) -> None:
        """Take the next pieces: arrays, or None for those in the vector."""


class Cuts:
    """An `Aim` that ends a graph whenever further pieces are ready, and counts the pieces."""

    takes_parts = False  # a later part of the graph may use their memory again
    started = False

    def __init__(self, vector: Any, cut: Callable[[], None]) -> None:
        self.vector = vector
        self.counts: List[int] = []
        self._cut = cut

    def ready(self, sources: Sequence[Any]) -> None:
        self._cut()
        self.counts.append(len(sources))


class VectorPiece(NamedTuple):
    """Elements of the vector that are reduced at once."""

    begin: int
    end: int
    part: int  # the only part that it lies in; -1 if there may be several


class Parts:
    """The `VectorParts` of one function.

    Args:
        copy: copies a part to a vector, from some element on.
        may_stay: for each part, whether nothing overwrites it after it was computed.

    Attributes:
        aim: None to join the parts at the end of the execution.
        pieces: in order of computation: a gradient's last ones first.
    """

    def __init__(self, copy: Callable[[Any, int, Any], None], may_stay: Sequence[bool]) -> None:
        self.aim: Optional[Aim] = None
        self.pieces: Tuple[VectorPiece, ...] = ()
        self._copy = copy
        self._may_stay = may_stay
        self._stays: List[bool] = []
        self._found: Tuple[int, ...] = ()
        self._begins: List[int] = [0] * (len(may_stay) + 1)
        self._there: List[Any] = []
        self._first = 0
        self._ready = 0

    @property
    def size(self) -> int:
        return self._begins[-1]

    def learn(self, itemsize: int) -> None:
        self._begins = [0, *accumulate(self._found)]
        self.pieces = pieces_of(self._found, itemsize)
        alone = {piece.part for piece in self.pieces}
        self._stays = [may and part in alone for part, may in enumerate(self._may_stay)]

    @contextmanager
    def aimed(self, aim: Optional[Aim]) -> Iterator[None]:
        before = self.aim
        self._begin(aim)
        try:
            yield
        finally:
            self._begin(before)

    def _begin(self, aim: Optional[Aim]) -> None:
        self.aim = aim
        self._there = [None] * len(self._may_stay)
        self._first = len(self._may_stay)
        self._ready = 0

    def take(self, place: int, part: Any) -> None:
        """Take a computed part. If its size has changed, join all parts at the end."""
        aim = self.aim
        if aim is None:
            return
        begin, end = self._begins[place : place + 2]
        if part.size != end - begin:
            self._begin(None)
            return
        stays = aim.takes_parts and self._stays[place] and part.flags["C_CONTIGUOUS"]
        if not stays:
            self._copy(aim.vector, begin, part)
        self._there[place] = part if stays else _COPIED
        while self._first and self._there[self._first - 1] is not None:
            self._first -= 1
        sources = []
        while self._ready < len(self.pieces):
            piece = self.pieces[self._ready]
            if piece.begin < self._begins[self._first]:
                break
            sources.append(self._source(piece))
            self._ready += 1
        if sources:
            aim.ready(sources)

    def _source(self, piece: VectorPiece) -> Any:
        held: Any = _COPIED if piece.part < 0 else self._there[piece.part]
        if held is _COPIED:
            return None
        begin = self._begins[piece.part]
        return held[piece.begin - begin : piece.end - begin]

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the vector."""
        if self.aim is not None:
            return self.aim.vector
        self._found = tuple([part.size for part in parts])
        return concatenated(parts)


_COPIED = object()


def pieces_of(sizes: Sequence[int], itemsize: int) -> Tuple[VectorPiece, ...]:
    """Return the pieces of a vector of parts of these sizes, last first; () for a single one.

    >>> million = 1 << 20
    >>> pieces = pieces_of([million // 2, million // 2, 2 * million], 4)
    >>> [(begin / million, end / million, part) for begin, end, part in pieces]
    [(2.0, 3.0, 2), (1.0, 2.0, 2), (0.0, 1.0, -1)]
    """
    least, total = -(-SMALLEST_PIECE // itemsize), sum(sizes)
    step = max(least, -(-total // MOST_PIECES))
    pieces: List[VectorPiece] = []
    end = begin = total
    for part, size in reversed(list(enumerate(sizes))):
        if size >= least:
            # The elements behind it, then the part alone.
            pieces += _cut(begin, end, step, -1)
            end = begin - size
            pieces += _cut(end, begin, step, part)
        begin -= size
    pieces += _cut(begin, end, step, -1)
    return tuple(pieces) if len(pieces) > 1 else ()


def _cut(begin: int, end: int, step: int, part: int) -> List[VectorPiece]:
    """Return the pieces of a range, the last first: about equal, none longer than `step`."""
    count = -(-(end - begin) // step)
    bounds = [begin + (end - begin) * n // count for n in range(count + 1)] if count else []
    return [VectorPiece(*ends, part) for ends in zip(bounds, bounds[1:])][::-1]


class PartOp(Op):  # type: ignore[misc] # Theano has no types
    """The identity, after a call of ``parts.take(place, input)``."""

    view_map = {0: [0]}  # noqa: RUF012 - Theano's

    def __init__(self, parts: Any, place: int) -> None:
        self.parts = parts
        self.place = place

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:  # noqa: ARG002
        self.parts.take(self.place, inputs[0])
        outputs[0][0] = inputs[0]


class JoinedOp(Op):  # type: ignore[misc]
    """Joins parts, which are inputs in reverse order.

    Theano's machine computes inputs in their order, each with all that it depends on, and the last
    part of a gradient depends on the least.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:  # noqa: ARG002
        outputs[0][0] = self.parts.joined(inputs[::-1])


def in_parts(
    function: Any, storage: List[Any], copy: Callable[[Any, int, Any], None]
) -> Optional[Tuple[Any, Parts]]:
    """Return a function that reports the parts of a variable's new value, and the parts.

    None if the function does not just join that value from parts, or also uses it elsewhere.
    """
    if not is_flat_able(function):
        return None
    flat = flatten(function)
    found = _joining(flat, [container.storage is storage for container in function.input_storage])
    if found is None:
        return None
    parts = Parts(copy, _keep_their_values(flat, flat.nodes[found][1][1:]))
    try:
        with linked_by_kind():
            return rebuild(_reporting(flat, found, parts)), parts
    except NotImplementedError:
        return None  # its linker takes no operations without C code


def _joining(flat: FlatFunction, is_variable: Sequence[bool]) -> Optional[int]:
    """Return the place of the node that joins the variable's new value; None without one, or if
    the function also uses that value, or the old one, elsewhere."""
    updated = [number for number, item in enumerate(flat.inputs) if item.has_update]
    mine = [number for number in updated if is_variable[number]]
    if not mine:
        return None
    vector = flat.outputs[len(flat.borrowed_outputs) + updated.index(mine[0])]
    used = [source for _, sources, _ in flat.nodes for source in sources] + list(flat.outputs)
    if mine[0] in used or used.count(vector) > 1:
        return None
    for place, (op, sources, made) in enumerate(flat.numbered_nodes()):
        if vector in made:
            types = flat.variable_types()
            is_join = type(op).__name__ in ("Join", "GpuJoin") and len(sources) > 2
            dtypes = {types[joined].dtype for joined in (vector, *sources[1:])}
            return place if is_join and types[vector].ndim == 1 == len(dtypes) else None
    return None


def _keep_their_values(flat: FlatFunction, numbers: Sequence[int]) -> List[bool]:
    """Return for each variable whether nothing overwrites its memory after it was computed."""
    origins: Dict[int, int] = {}  # of views and results in place: the owner of the memory
    writers: Dict[int, Set[int]] = {}
    makers: Dict[int, Tuple[int, int]] = {}
    for node, (op, sources, made) in enumerate(flat.numbered_nodes()):
        views, destroyed = getattr(op, "view_map", {}), getattr(op, "destroy_map", {})
        for output, number in enumerate(made):
            for at in (*views.get(output, ()), *destroyed.get(output, ())):
                makers[number] = node, sources[at]
                origins[number] = origins.get(sources[at], sources[at])
        for at in {at for each in destroyed.values() for at in each}:
            writers.setdefault(origins.get(sources[at], sources[at]), set()).add(node)

    def keeps(number: int) -> bool:
        origin, passed = origins.get(number, number), set()
        while number in makers:
            node, number = makers[number]
            passed.add(node)
        return origin >= flat.first_made and writers.get(origin, set()) <= passed

    return [keeps(number) for number in numbers]


def _reporting(flat: FlatFunction, joining: int, parts: Parts) -> FlatFunction:
    """Return the function with operations that report the parts, in place of the join."""
    types, new = flat.variable_types(), Rewriting(flat)
    for place, (_, sources, made) in enumerate(flat.numbered_nodes()):
        if place != joining:
            new.keep(place, made)
            continue
        reported = [
            new.add(PartOp(parts, part), [new.numbers[source]], types[source])
            for part, source in enumerate(sources[1:])
        ]
        new.numbers[made.start] = new.add(JoinedOp(parts), reported[::-1], types[made.start])
    return new.result([new.numbers[number] for number in flat.outputs])
