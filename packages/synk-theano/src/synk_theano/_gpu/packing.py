"""Arrays of a recorded function that lie end to end, so that few copies are enough for many."""

from __future__ import annotations

from operator import is_
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from synk_core.adapting import empty_like, whole_of

ALIGNMENT = 256
"""Bytes: a result among others begins at a multiple."""


class Packing:
    """The places of arrays of given shapes and dtypes, end to end in one vector for each dtype."""

    def __init__(self, arrays: Sequence[Any], alignment: int = ALIGNMENT) -> None:
        self._sizes: Dict[Any, int] = {}
        self._places = []
        for array in arrays:
            begin = self._sizes.get(array.dtype, 0)
            end = begin + array.size
            self._places.append((array.dtype, begin, end, array.shape))
            unit = max(alignment // array.dtype.itemsize, 1)
            self._sizes[array.dtype] = -(-end // unit) * unit

    def vectors(self, like: Any) -> List[Any]:
        """Return new vectors on the device of `like`."""
        return [empty_like(like, (size,), dtype) for dtype, size in self._sizes.items()]

    def parts(self, vectors: Sequence[Any]) -> List[Any]:
        """Return the arrays, as views of the vectors."""
        by_dtype = dict(zip(self._sizes, vectors))
        return [
            by_dtype[dtype][begin:end].reshape(shape) for dtype, begin, end, shape in self._places
        ]


class PackedResults:
    """Small results of a graph, which it copies into common vectors; `places` of all results."""

    def __init__(self, places: Sequence[int], results: Sequence[Any]) -> None:
        self.packing = Packing([results[place] for place in places])
        self.places = places
        self._vectors = self.packing.vectors(results[places[0]])
        self._parts = self.packing.parts(self._vectors)
        self._given: List[Any] = []
        self._wholes: List[Any] = []

    def take(self, values: Sequence[Any], graphs: Any) -> None:
        """Copy the results into the vectors, as a part of the graph."""
        for value, part in zip(values, self._parts):
            graphs.copy(part, value)

    def give(self, results: List[Any], graphs: Any) -> List[Any]:
        """Put copies among the results of a replay; return them."""
        self._wholes = self.packing.vectors(self._vectors[0])
        for target, source in zip(self._wholes, self._vectors):
            graphs.copy(target, source)
        self._given = self.packing.parts(self._wholes)
        for place, part in zip(self.places, self._given):
            results[place] = part
        return self._given

    def newest(self, values: Sequence[Any]) -> Optional[List[Any]]:
        """Return the vectors of which these values are parts, if the last replay gave them."""
        same = len(values) == len(self._given) and all(map(is_, values, self._given))
        return self._wholes if same else None


class CommonInputs:
    """Inputs of a graph that lie in common vectors; `places` of all inputs.

    Attributes:
        find: returns the vectors in which values lie in the same way; None if they do not.
    """

    def __init__(
        self,
        places: Sequence[int],
        packing: Packing,
        values: Sequence[Any],
        find: Callable[[Sequence[Any]], Optional[List[Any]]],
    ) -> None:
        self.places = places
        self.find = find
        self.vectors = packing.vectors(values[places[0]])
        self.parts = packing.parts(self.vectors)


def vectors_of(shapes: Tuple[Any, ...], values: Sequence[Any]) -> Optional[List[Any]]:
    vector = whole_of(values, shapes)
    return None if vector is None else [vector]
