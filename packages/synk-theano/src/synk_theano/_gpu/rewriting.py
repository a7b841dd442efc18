"""Flat functions made from other ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Sequence

from synk_core.adapting import FlatFunction, FlatInput

_SETTINGS = {
    "name": None,
    "mutable": False,
    "borrow": True,
    "strict": True,
    "allow_downcast": None,
    "implicit": False,
    "shared": False,
}


class Rewriting:
    """A flat function in the making, of the nodes of another one, and of new ones.

    Args:
        more: types of further arguments, which come after the other function's inputs.

    Attributes:
        numbers: the new numbers of the other function's variables.
    """

    def __init__(self, flat: FlatFunction, more: Sequence[Any] = ()) -> None:
        self._flat = flat
        self._inputs = (*flat.inputs, *map(argument, more))
        self._nodes: List[Any] = []
        self._count = flat.first_made + len(more)
        n_inputs = len(flat.inputs)
        self.numbers = {n: n + len(more) * (n >= n_inputs) for n in range(flat.first_made)}

    def keep(self, place: int, made: range) -> None:
        """Keep the node at a place; `made` are its outputs in the other function."""
        op, sources, outputs = self._flat.nodes[place]
        self._nodes.append((op, tuple(self.numbers[source] for source in sources), outputs))
        self.numbers.update((number, self._count + i) for i, number in enumerate(made))
        self._count += len(made)

    def add(self, op: Any, sources: Sequence[int], type_: Any) -> int:
        """Add a node with new numbers of inputs; return the new number of its only output."""
        self._nodes.append((op, tuple(sources), ((type_, None),)))
        self._count += 1
        return self._count - 1

    def result(self, outputs: Sequence[int], **changes: Any) -> FlatFunction:
        """Return the function with these outputs, by their new numbers."""
        return replace(
            self._flat,
            **{"inputs": self._inputs, **changes},
            nodes=tuple(self._nodes),
            outputs=tuple(outputs),
        )


def argument(type_: Any) -> FlatInput:
    """Return an input without a name or a default value."""
    return FlatInput(type_, None, None, False, _SETTINGS)
