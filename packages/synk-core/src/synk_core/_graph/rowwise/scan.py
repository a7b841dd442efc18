"""The rule for scan: walk the inner graph until the values of its states no longer change.

The first axis of the states is time, so the axis of rows is one more outside than inside. A scan
over the rows is unknown, and so is one whose number of steps depends on data.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, List, Tuple

from .reduced import union
from .walk import FIXED, Value, Walk, plain, rule, unknown

_ROUNDS = 6


@rule("Scan", takes="all")
def scan(node: Any, values: List[Value]) -> List[Value]:
    """Loop over the first axis."""
    op, count = node.op, len(node.outputs)
    outer = dict(zip(node.inputs, (plain(value) for value in values)))
    steps = plain(values[0])
    if steps.kind == "fixed" and not steps.steady:
        return [unknown(node, "loops over rows")] * count
    if not steps.steady or op.info.get("as_while"):
        return [unknown(node, "has an unknown number of steps")] * count
    known: Dict[Any, Value] = {}
    sequences = zip(op.inner_seqs(op.inputs), op.outer_seqs(node.inputs))
    for inner, variable in sequences:
        known[inner] = _inside(node, outer[variable])
    for inner, variable in zip(op.inner_non_seqs(op.inputs), op.outer_non_seqs(node.inputs)):
        known[inner] = outer[variable]
    for inner in op.inner_shared(op.inputs):
        known[inner] = FIXED
    buffers = _buffers(node)
    states = [_inside(node, outer[initial]) for initial, _, _ in buffers]
    for _ in range(_ROUNDS):
        walk = Walk(known)
        for state, (_, inner_inputs, _) in zip(states, buffers):
            walk.values.update(dict.fromkeys(inner_inputs, state))
        after = [
            union(node, [state, *(plain(walk.value(output)) for output in outputs)])
            for state, (_, _, outputs) in zip(states, buffers)
        ]
        if [_shape(state) for state in after] == [_shape(state) for state in states]:
            break
        states = after
    else:
        return [unknown(node, "has states that this check cannot follow")] * count
    produced = [plain(walk.value(output)) for output in op.inner_nitsot_outs(op.outputs)]
    outside = [_outside(value) for value in [*after, *produced]]
    return outside + [FIXED] * (count - len(outside))


def _shape(value: Value) -> Tuple[Any, ...]:
    """Return the fields that have to be equal before and after a step."""
    return value.kind, value.degree, value.axis, value.layout, value.literal


def _inside(node: Any, value: Value) -> Value:
    if value.axis is None:
        return value
    if value.axis == 0:
        return unknown(node, "loops over rows")
    return value._replace(axis=value.axis - 1)


def _outside(value: Value) -> Value:
    return value if value.axis is None else value._replace(axis=value.axis + 1)


def _buffers(node: Any) -> List[Tuple[Any, List[Any], List[Any]]]:
    """Return for each state its initial value, and the inner graph's inputs and outputs for it."""
    op = node.op
    result: List[Tuple[Any, List[Any], List[Any]]] = []
    # The steps that each state reads and writes; () stands for one.
    kinds: Tuple[Tuple[str, Any, Any], ...] = (
        ("mitmot", op.mitmot_taps(), op.mitmot_out_taps()),
        ("mitsot", op.mitsot_taps(), ()),
        ("sitsot", (), ()),
    )
    for kind, taps, out_taps in kinds:
        inputs = iter(getattr(op, f"inner_{kind}")(op.inputs))
        outputs = iter(getattr(op, f"inner_{kind}_outs")(op.outputs))
        for place, initial in enumerate(getattr(op, f"outer_{kind}")(node.inputs)):
            taken = len(taps[place]) if taps else 1
            given = len(out_taps[place]) if out_taps else 1
            result.append((initial, list(islice(inputs, taken)), list(islice(outputs, given))))
    return result
