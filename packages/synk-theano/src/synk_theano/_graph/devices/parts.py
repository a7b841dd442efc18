"""Vectors that a function joins from parts, such as the gradient of all parameters.

A function is built again here so that it tells of each part as soon as that is computed. So the
first ones can be reduced over ranks while it computes the others.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Sequence, Tuple

from theano.gof import Op

from synk_theano._graph.shared import Storage
from synk_theano._graph.transfer.flat import FlatFunction, flatten, is_flat_able, rebuild
from synk_theano._graph.transfer.linking import linked_by_kind
from synk_theano._graph.values import concatenated

MOST_PIECES = 16
"""Pieces of a vector that are reduced one by one."""

SMALLEST_PIECE = 4 << 20
"""Bytes of a piece; of the last one, more than nothing."""


class Aim(Protocol):
    """Where an execution puts the parts.

    Attributes:
        vector: which is to hold them.
        started: whether others have been told of some.
    """

    vector: Any
    started: bool

    def ready(self, count: int, x: Any = None) -> None:
        """Take note that so many pieces are in the vector; see `Parts.pieces`.

        Args:
            x: another vector, in which they are instead.
        """


class PartsChangedError(Exception):
    """The parts have other sizes than before."""


class Parts:
    """The parts of one vector, and the executions of the function that joins it.

    Args:
        count: of the parts.
        copy: copies a part to a vector, from some element on.

    Attributes:
        aim: where the next execution puts the parts; None to join them at its end.
        pieces: begin and end, in elements, of what is reduced at once: the last ones first, as a
            gradient comes about. () before `learn`, and where it is not worth while.
    """

    def __init__(self, count: int, copy: Callable[[Any, int, Any], None]) -> None:
        self.aim: Optional[Aim] = None
        self.pieces: Tuple[Tuple[int, int], ...] = ()
        self._copy = copy
        self._found: Tuple[int, ...] = ()
        self._begins: List[int] = [0] * (count + 1)
        self._there = [False] * count
        self._first = count
        self._ready = 0

    @property
    def size(self) -> int:
        """Return the number of elements of the vector, when it was joined last."""
        return self._begins[-1]

    def learn(self, itemsize: int) -> None:
        """Expect in further executions parts of the sizes that they had in the last one."""
        self._begins = [0, *accumulate(self._found)]
        self.pieces = pieces_of(self.size, itemsize)

    @contextmanager
    def aimed(self, aim: Optional[Aim]) -> Iterator[None]:
        """For the duration of the block, put the parts somewhere else."""
        before = self.aim
        self._begin(aim)
        try:
            yield
        finally:
            self._begin(before)

    def _begin(self, aim: Optional[Aim]) -> None:
        self.aim = aim
        self._there = [False] * len(self._there)
        self._first = len(self._there)
        self._ready = 0

    def take(self, place: int, part: Any) -> None:
        """Put a part into the vector, amid the function.

        Raises:
            PartsChangedError: it has another size than before.
        """
        aim = self.aim
        if aim is None:
            return
        begins = self._begins
        if part.size != begins[place + 1] - begins[place]:
            raise PartsChangedError
        self._copy(aim.vector, begins[place], part)
        there = self._there
        there[place] = True
        while self._first and there[self._first - 1]:
            self._first -= 1
        pieces, ready, begin = self.pieces, self._ready, begins[self._first]
        while ready < len(pieces) and pieces[ready][0] >= begin:
            ready += 1
        if ready > self._ready:
            self._ready = ready
            aim.ready(ready)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the vector, at the end of the function."""
        if self.aim is not None:
            return self.aim.vector
        self._found = tuple([part.size for part in parts])
        return concatenated(parts)


def pieces_of(size: int, itemsize: int) -> Tuple[Tuple[int, int], ...]:
    """Return begin and end of the pieces in which a vector is reduced, the last ones first.

    () if it is not worth while.

    >>> pieces_of(10, SMALLEST_PIECE // 4)
    ((6, 10), (2, 6), (0, 2))
    """
    step = max(-(-SMALLEST_PIECE // itemsize), -(-size // MOST_PIECES))
    pieces = [(max(stop - step, 0), stop) for stop in range(size, 0, -step)]
    return tuple(pieces) if len(pieces) > 1 else ()


class PartOp(Op):  # type: ignore[misc] # Theano has no types
    """Returns its input, of which it tells before.

    Args:
        parts: whom.
        place: of the part.
    """

    view_map = {0: [0]}  # noqa: RUF012 - Theano's

    def __init__(self, parts: Parts, place: int) -> None:
        self.parts = parts
        self.place = place

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:  # noqa: ARG002
        self.parts.take(self.place, inputs[0])
        outputs[0][0] = inputs[0]


class JoinedOp(Op):  # type: ignore[misc]
    """Joins parts, unless they have been put somewhere already.

    It takes the last part first: Theano's machine computes inputs in their order, each with all
    that it depends on, and the last part of a gradient depends on the least.

    Args:
        parts: who knows.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:  # noqa: ARG002
        outputs[0][0] = self.parts.joined(inputs[::-1])


def in_parts(
    function: Any, storage: Storage, copy: Callable[[Any, int, Any], None]
) -> Optional[Tuple[Any, Parts]]:
    """Return a compiled function that tells of the parts of a variable's new value, and these.

    None if the function does not just join that value from parts, or also uses it elsewhere.

    Args:
        storage: of the variable.
        copy: see `Parts`.
    """
    if not is_flat_able(function):
        return None
    flat = flatten(function)
    found = _joining(flat, [container.storage is storage for container in function.input_storage])
    if found is None:
        return None
    parts = Parts(len(flat.nodes[found][1]) - 1, copy)
    with linked_by_kind():
        return rebuild(_telling(flat, found, parts)), parts


def _joining(flat: FlatFunction, is_variable: Sequence[bool]) -> Optional[int]:
    """Return the place of the node that joins the variable's new value; None if there is none."""
    updated = [number for number, item in enumerate(flat.inputs) if item.has_update]
    mine = [number for number in updated if is_variable[number]]
    if not mine:
        return None
    vector = flat.outputs[len(flat.borrowed_outputs) + updated.index(mine[0])]
    read = {source for _, sources, _ in flat.nodes for source in sources}
    if read & {vector, mine[0]} or flat.outputs.count(vector) > 1:
        return None
    number = flat.first_made
    for place, (op, sources, made) in enumerate(flat.nodes):
        if number <= vector < number + len(made):
            is_join = type(flat.ops[op]).__name__ in ("Join", "GpuJoin") and len(sources) > 2
            return place if is_join and flat.variable_types()[vector].ndim == 1 else None
        number += len(made)
    return None


def _telling(flat: FlatFunction, joining: int, parts: Parts) -> FlatFunction:
    """Return the function with operations that tell of the parts, in place of the join."""
    ops, types = list(flat.ops), list(flat.types)
    nodes: List[Any] = []
    of_variables = flat.variable_types()
    numbers: Dict[int, int] = {number: number for number in range(flat.first_made)}
    old = new = flat.first_made
    for place, (op, sources, made) in enumerate(flat.nodes):
        sources = tuple(numbers[source] for source in sources)
        if place == joining:
            for part, source in enumerate(flat.nodes[joining][1][1:]):
                ops.append(PartOp(parts, part))
                types.append(of_variables[source])
                nodes.append((len(ops) - 1, (numbers[source],), ((len(types) - 1, None),)))
            sources = tuple(reversed(range(new, new + len(sources) - 1)))
            new += len(sources)
            ops.append(JoinedOp(parts))
            op = len(ops) - 1
        nodes.append((op, sources, made))
        numbers.update(zip(range(old, old + len(made)), range(new, new + len(made))))
        old += len(made)
        new += len(made)
    return replace(
        flat,
        ops=tuple(ops),
        types=tuple(types),
        nodes=tuple(nodes),
        outputs=tuple(numbers[number] for number in flat.outputs),
    )
