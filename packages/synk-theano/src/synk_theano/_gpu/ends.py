"""Compiled functions whose inputs and outputs stay on the device.

Theano's functions of host variables copy arguments and results amid the computation, while the host
waits. Here inputs that are only copied to the device, and outputs that are copied from it at last,
become the device's: the rank copies arguments and results itself (`device`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Sequence, Set

from theano.compile.ops import deep_copy_op

from synk_core.adapting import FlatFunction, flatten, is_flat_able, rebuild

from .arrays import is_copy
from .rewriting import Rewriting

SHAPES = ("Shape", "Shape_i")
"""Operations that return an array's shape, wherever the array lies."""


def with_device_ends(function: Any, host_outputs: Sequence[bool]) -> Any:
    """Return the function with device inputs and outputs, as far as its graph allows."""
    # A profile belongs to the function as it was compiled.
    if not is_flat_able(function) or function.profile:
        return function
    flat = flatten(function)
    inputs, outputs = _brought(flat), _fetched(flat, host_outputs)
    return rebuild(_moved(flat, inputs, outputs)) if inputs or outputs else function


def _brought(flat: FlatFunction) -> Dict[int, Any]:
    """Return the arguments that are only copied to the default device: number -> type."""
    types = flat.variable_types()
    arguments = {
        number
        for number, item in enumerate(flat.inputs)
        if item.value is None and not item.has_update
    }
    candidates: Dict[int, Any] = {}
    spoiled: Set[int] = set(flat.outputs)
    for op, sources, made in flat.numbered_nodes():
        for source in arguments.intersection(sources):
            type_ = types[made.start]
            copied = is_copy(op, "GpuFromHost") and type_.context_name is None
            if copied and source not in candidates:
                candidates[source] = type_
            elif type(op).__name__ not in SHAPES:
                # A second copy counts, too: an in-place operation may overwrite either of them.
                spoiled.add(source)
    return {number: type_ for number, type_ in candidates.items() if number not in spoiled}


def _fetched(flat: FlatFunction, host_outputs: Sequence[bool]) -> Dict[int, int]:
    """Return the outputs that are copied to the host at last: position -> number of the source."""
    types, found = flat.variable_types(), {}
    makers = {n: (op, sources) for op, sources, made in flat.numbered_nodes() for n in made}
    outputs = flat.outputs[: len(flat.borrowed_outputs)]
    for position, (number, stays) in enumerate(zip(outputs, host_outputs)):
        op, sources = makers.get(number, (None, ()))
        if not stays and is_copy(op, "HostFromGpu") and types[sources[0]].context_name is None:
            found[position] = sources[0]
    return found


def _moved(flat: FlatFunction, inputs: Dict[int, Any], outputs: Dict[int, int]) -> FlatFunction:
    """Return the function without these copies; see `_brought` and `_fetched`."""
    types, new = flat.variable_types(), Rewriting(flat)
    # Copies to the host that other nodes read stay.
    read = {source for _, sources, _ in flat.nodes for source in sources}
    read.update(n for i, n in enumerate(flat.outputs) if i not in outputs)
    dropped = {flat.outputs[position] for position in outputs} - read
    for place, (op, sources, made) in enumerate(flat.numbered_nodes()):
        if sources[:1] and sources[0] in inputs and is_copy(op, "GpuFromHost"):
            new.numbers[made.start] = sources[0]
        elif made.start not in dropped:
            new.keep(place, made)

    def output(position: int, number: int) -> int:
        if position not in outputs:
            return new.numbers[number]
        # A copy on the device in place of that to the host: its source may be changed later.
        source = outputs[position]
        return new.add(deep_copy_op, [new.numbers[source]], types[source])

    items = list(flat.inputs)
    for number, type_ in inputs.items():
        settings = {**items[number].settings, "strict": False}
        items[number] = replace(items[number], type=type_, settings=settings)
    return new.result([output(*each) for each in enumerate(flat.outputs)], inputs=tuple(items))
