"""Compiled functions whose inputs and outputs stay on the device.

A function of host variables, as Theano compiles it, copies arguments from host memory and results
to it in the middle of the computation, while the host waits. This file removes these copies from
the compiled graph: an input that is only ever copied to the device becomes a device input, and an
output that is copied to the host as the last step becomes a device output. The rank copies
arguments and results itself (`device`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Sequence, Set, Tuple

from theano.compile.ops import deep_copy_op

from synk_core.adapting import FlatFunction, FlatInput, flatten, is_flat_able, rebuild

from .arrays import is_copy

SHAPES = ("Shape", "Shape_i")
"""Operations that return an array's shape, wherever the array lies."""

Node = Tuple[int, Tuple[int, ...], Tuple[Tuple[int, Any], ...]]


def with_device_ends(function: Any, host_outputs: Sequence[bool]) -> Any:
    """Return the function with device inputs and outputs, as far as its graph allows.

    Args:
        host_outputs: for each output, whether it stays in host memory.
    """
    # A profile belongs to the function as it was compiled.
    if not is_flat_able(function) or function.profile:
        return function
    flat = _Ends(flatten(function), host_outputs).moved()
    return function if flat is None else rebuild(flat)


class _Ends:
    """Rewrites one flat function."""

    def __init__(self, flat: FlatFunction, host_outputs: Sequence[bool]) -> None:
        self._flat = flat
        self._host_outputs = host_outputs
        # By a variable's number: its type, and the place of the node that makes it.
        self._types = flat.variable_types()
        makers = (place for place, (_, _, made) in enumerate(flat.nodes) for _ in made)
        self._makers: Dict[int, int] = dict(enumerate(makers, flat.first_made))

    def moved(self) -> Any:
        """Return the function with its ends moved; None if there is nothing to move."""
        inputs, outputs = self._inputs(), self._outputs()
        return self._rewritten(inputs, outputs) if inputs or outputs else None

    def _op(self, place: int) -> Any:
        return self._flat.ops[self._flat.nodes[place][0]]

    def _inputs(self) -> Dict[int, Any]:
        """Return the arguments that are only copied to the default device: number -> type."""
        flat = self._flat
        arguments = {
            number
            for number, item in enumerate(flat.inputs)
            if item.holder is None and item.default is None and not item.has_update
        }
        candidates: Dict[int, Any] = {}
        spoiled: Set[int] = set(flat.outputs)
        for place, (_, sources, outputs) in enumerate(flat.nodes):
            for source in arguments.intersection(sources):
                type_ = flat.types[outputs[0][0]]
                copied = is_copy(self._op(place), "GpuFromHost")
                if copied and type_.context_name is None and source not in candidates:
                    candidates[source] = type_
                elif type(self._op(place)).__name__ not in SHAPES:
                    # A second copy counts, too: an in-place operation may overwrite either of them.
                    spoiled.add(source)
        return {number: type_ for number, type_ in candidates.items() if number not in spoiled}

    def _outputs(self) -> Set[int]:
        """Return the positions of outputs that are copied to the host as the last step."""
        flat = self._flat
        found = set()
        for position in range(len(flat.borrowed_outputs)):
            place = self._makers.get(flat.outputs[position])
            wanted = position < len(self._host_outputs) and not self._host_outputs[position]
            if wanted and place is not None and is_copy(self._op(place), "HostFromGpu"):
                (source,) = flat.nodes[place][1]
                if self._types[source].context_name is None:
                    found.add(position)
        return found

    def _rewritten(self, inputs: Dict[int, Any], outputs: Set[int]) -> FlatFunction:
        flat = self._flat
        ops, types = list(flat.ops), list(flat.types)
        numbers = {number: number for number in range(flat.first_made)}
        nodes: List[Node] = []
        count = flat.first_made
        # Copies to the host that other nodes read stay.
        read = {source for _, sources, _ in flat.nodes for source in sources}
        read.update(n for i, n in enumerate(flat.outputs) if i not in outputs)
        dropped = {flat.outputs[position] for position in outputs} - read
        number = flat.first_made
        for op, sources, made in flat.nodes:
            begin, number = number, number + len(made)
            if sources[:1] and sources[0] in inputs and is_copy(ops[op], "GpuFromHost"):
                numbers[begin] = sources[0]
                continue
            if begin in dropped:
                continue
            nodes.append((op, tuple(numbers[source] for source in sources), made))
            for old in range(begin, number):
                numbers[old] = count
                count += 1
        results = []
        for position, old in enumerate(flat.outputs):
            if position not in outputs:
                results.append(numbers[old])
                continue
            # A copy on the device in place of that to the host: its source may be changed later.
            (source,) = flat.nodes[self._makers[old]][1]
            made = ((_index_in(types, self._types[source]), None),)
            nodes.append((_index_in(ops, deep_copy_op), (numbers[source],), made))
            results.append(count)
            count += 1
        return replace(
            flat,
            inputs=tuple(
                _device_input(item, inputs[i]) if i in inputs else item
                for i, item in enumerate(flat.inputs)
            ),
            ops=tuple(ops),
            types=tuple(types),
            nodes=tuple(nodes),
            outputs=tuple(results),
        )


def _device_input(item: FlatInput, type_: Any) -> FlatInput:
    return replace(
        item, cls=type_.Variable, type=type_, settings={**item.settings, "strict": False}
    )


def _index_in(items: List[Any], item: Any) -> int:
    """Return the place of an item in a list, to which it is added if need be."""
    for place, held in enumerate(items):
        if held is item or (type(held) is type(item) and held == item):
            return place
    items.append(item)
    return len(items) - 1
