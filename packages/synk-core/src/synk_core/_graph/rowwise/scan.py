"""The rules for operations with a graph inside: it is walked.

That of a scan is walked until the values of its states no longer change.
The first axis of the states is time, so the axis of rows is one more outside than inside. A scan
over the rows is unknown, and so is one whose number of steps depends on data.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from synk_core.engine import has_condition, inner_graph, taps_of

from .reduced import union
from .walk import OF_A_GRAPH, Value, Walk, blamed, find_reshapes, plain, rule, unknown

_ROUNDS = 6


@rule(OF_A_GRAPH, takes="all", with_walk=True)
def of_a_graph(node: Any, values: List[Value], walk: Walk) -> List[Value]:
    """Compute a graph."""
    inputs, outputs = inner_graph(node.op)
    inner = Walk(dict(zip(inputs, values)), find_reshapes(outputs))
    walk.keep(inner)
    given = [plain(value) for value in values]
    return [blamed(node, inner.value(output), given) for output in outputs]


@rule("Scan", takes="all", with_walk=True)
def scan(node: Any, values: List[Value], walk: Walk) -> List[Value]:
    """Loop over the first axis."""
    op, count = node.op, len(node.outputs)
    outer = dict(zip(node.inputs, (plain(value) for value in values)))
    steps = plain(values[0])
    if steps.kind == "fixed" and not steps.steady:
        return [unknown(node, "loops over rows")] * count
    if not steps.steady or has_condition(op):
        return [unknown(node, "has an unknown number of steps")] * count
    inputs, outputs = inner_graph(op)
    known: Dict[Any, Value] = {}
    for inner, variable in zip(op.inner_seqs(inputs), op.outer_seqs(node.inputs)):
        known[inner] = _inside(node, outer[variable])
    for inner, variable in zip(op.inner_non_seqs(inputs), op.outer_non_seqs(node.inputs)):
        known[inner] = outer[variable]
    buffers = _buffers(node, inputs, outputs)
    states = [state.enter(node, outer[state.initial]) for state in buffers]
    for _ in range(_ROUNDS):
        rounds = Walk(known)
        walk.keep(rounds)
        for value, state in zip(states, buffers):
            rounds.values.update(dict.fromkeys(state.inputs, value))
        after = [
            union(node, [value, *(plain(rounds.value(output)) for output in state.outputs)])
            for value, state in zip(states, buffers)
        ]
        if [_shape(state) for state in after] == [_shape(state) for state in states]:
            break
        states = after
    else:
        return [unknown(node, "has states that this check cannot follow")] * count
    produced = [plain(rounds.value(output)) for output in op.inner_nitsot_outs(outputs)]
    kept = [state.leave(value) for state, value in zip(buffers, after)]
    traced = sum(state.traced for state in buffers)
    return [*kept[:traced], *map(_outside, produced), *kept[traced:]]


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


class _Carried(NamedTuple):
    """What a scan hands from step to step.

    Attributes:
        initial: its value before, a variable outside.
        inputs, outputs: variables inside that stand for it.
        traced: whether all its values are kept, along a first axis.
    """

    initial: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    traced: bool = True

    def enter(self, node: Any, value: Value) -> Value:
        """Return the value of a step, of the value outside."""
        return _inside(node, value) if self.traced else value

    def leave(self, value: Value) -> Value:
        """Return the value outside, of that of a step."""
        return _outside(value) if self.traced else value


def _buffers(node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> List[_Carried]:
    """Return the states of a scan with these inner variables, in the order of its outputs."""
    op = node.op
    result: List[_Carried] = []
    for kind, (read, written) in taps_of(op).items():
        inner = iter(getattr(op, f"inner_{kind}")(inputs))
        made = iter(getattr(op, f"inner_{kind}_outs")(outputs))
        for place, initial in enumerate(getattr(op, f"outer_{kind}")(node.inputs)):
            taken = list(islice(inner, len(read[place]) if read else 1))
            out = list(islice(made, len(written[place]) if written else 1))
            result.append(_Carried(initial, taken, out, kind in _TRACED))
    return result


_TRACED = ("mitmot", "mitsot", "sitsot")
