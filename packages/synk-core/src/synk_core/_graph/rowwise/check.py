"""Decide whether each output of a function, with its op, is exact on any split of the rows.

The check reads the graph and runs nothing. "wrong" follows from the structure: results of parts of
the rows cannot be combined to the result of all. Terms that happen to cancel are not recognized. A
graph that the check cannot follow is "unknown", never "wrong".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, FrozenSet, List, Optional, Sequence, Tuple

from synk_core._graph.leaves import differs_by_rank, lineage_of
from synk_core._graph.random_streams import is_random_state
from synk_core._graph.spec import FunctionSpec, make_spec
from synk_core._warn import warn_user
from synk_core.engine import ADAPTER, NAME
from synk_core.exceptions import DecompositionWarning

from . import (
    Reason,
    Value,
    Walk,
    describe_value,
    find_reshapes,
    layout_kind,
    plain,
    rows,
    unknown,
)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one output or update.

    Attributes:
        position: index among the outputs, or among the updates.
        output: the output's name, or a short form; of an update, the shared variable's.
        op: the op that collects it; of an update, the op over slices.
        verdict: "exact", "wrong", or "unknown" (the check cannot decide); of an update "exact" if
            all ranks have the same value after a call, or "differs".
        reason: a description of it, the node that matters, and the cure.
    """

    position: int
    output: str
    op: Optional[str]
    verdict: str
    reason: str


def check_spec(spec: FunctionSpec) -> List[Verdict]:
    """Return a verdict for each output, in their order.

    Rows are along axis 0, or `row_axes`, of the scattered inputs, and along axis 0 of the sliceable
    shared variables. With neither there are no rows to split, and every output is exact.
    """
    walk = _walk(spec)
    return [
        _verdict(walk, place, variable, variable, op)
        for place, (variable, op) in enumerate(zip(spec.outputs, spec.output_ops))
    ]


def check_updates(spec: FunctionSpec) -> List[Verdict]:
    """Return a verdict for each update: whether all ranks have the same new value after a call.

    Updates of random states are left out: they should differ.
    """
    ops = {id(target): op for target, _, op in spec.accumulated}
    lineage = lineage_of(spec)
    behind = {id(target): leaves for target, leaves in lineage.updates}
    verdicts = []
    for place, (target, leaves) in enumerate(lineage.since_reduced):
        if is_random_state(target):
            continue
        op = ops.get(id(target))
        verdict, reason = "exact", "It is the same on all ranks: it does not depend on rows."
        if differs_by_rank(leaves, spec):
            verdict = "differs"
            carried = any(leaf is target for leaf in leaves)
            reason = _OF_OWN_ROWS.format("its old value and " if carried else "")
            reason += _CURE_OF_CARRIED if carried else "all_reduce() it before it is used."
        elif differs_by_rank(behind[id(target)], spec):
            reason = "It is the same on all ranks: its terms of rows are reduced in the graph."
        elif op in ("sum", "prod") and not lineage.has_reductions:
            verdict, reason = "differs", f"Op {op!r} takes it once for each slice; use op 'last'."
        name = _shorten(str(target))
        verdicts.append(Verdict(place, name, op, verdict, reason))
    return verdicts


_OF_OWN_ROWS = "It is computed from {}the rank's own rows, so each rank has another value: "

_CURE_OF_CARRIED = (
    "all_reduce() it after each call; to train, build the step with make_train_function(loss, "
    "params, inputs, updates.adam) of synkhronos.extensions, which makes those of one process."
)


def describe(verdicts: Sequence[Verdict], updates: Sequence[Verdict] = ()) -> str:
    """Return a report: a line for each verdict, and its reason below."""
    lines = [] if verdicts else ["no outputs: nothing to check"]
    for several, what in ((verdicts, ""), (updates, "update ")):
        for verdict in several:
            mark = "WRONG" if verdict.verdict == "wrong" else verdict.verdict
            op = f"{what}{verdict.output}" + ("" if what else f", op {verdict.op!r}")
            lines.append(f"{mark:<7}  [{verdict.position}] {op}")
            lines.append(f"         {verdict.reason}")
    return "\n".join(lines)


def _walk(spec: FunctionSpec) -> Optional[Walk]:
    """Return a walk that starts from the inputs with rows; None if there are none."""
    sources = [*spec.variables[: spec.n_scattered], *spec.sliceable]
    if not sources:
        return None
    ends = [*spec.outputs, *(value for _, value, _ in spec.updates)]
    ends += [replacement for _, replacement in spec.givens]
    axes = [*spec.row_axes, *(0 for _ in spec.sliceable)]
    known = {variable: _source(variable, axis) for variable, axis in zip(sources, axes)}
    walk = Walk(known, find_reshapes(ends))
    # As in the engine, each replacement is built with those before it in place.
    for key, replacement in spec.givens:
        walk.values[key] = walk.value(replacement)
        if replacement in walk.random:
            walk.random.add(key)
    return walk


def _source(variable: Any, axis: int) -> Value:
    broadcastable = getattr(variable.type, "broadcastable", None)
    if broadcastable is None or not broadcastable or broadcastable[axis]:
        return unknown(None, f"rows of {variable} ({variable.type}) are not along axis {axis}")
    return rows(axis)


def _verdict(
    walk: Optional[Walk], place: int, named: Any, variable: Any, op: Optional[str]
) -> Verdict:
    name = _shorten(str(named))
    if op is None:
        return Verdict(place, name, op, "exact", "It is the master's own result, of its own rows.")
    if walk is None:
        return Verdict(place, name, op, "exact", "No input is scattered: there are no rows.")
    value = plain(walk.value(variable))
    verdict, reason = _judge(value, op)
    if variable in walk.random and verdict == "exact":
        reason += " Random draws are part of it: equal in distribution, not in numbers."
    if variable in walk.met and verdict == "exact":
        reason += (
            " It is computed with an in-graph all_reduce or all_gather: exact on any split over "
            "ranks; of each slice if the call is sliced."
        )
    return Verdict(place, name, op, verdict, reason)


def _fitting(value: Value) -> FrozenSet[str]:
    """Return the ops that are exact for a value."""
    if value.kind == "fixed" and value.steady:
        always = {"avg", "max", "min", "last"}
        if value.zero:
            return frozenset(always | {"sum", "prod"})
        return frozenset(always | {"prod"} if value.literal == 1 else always)
    if value.kind in ("sum", "fixed"):
        return frozenset({0.0: ["avg"], 1.0: ["sum"]}.get(value.degree, []))
    if value.kind in ("max", "min", "prod"):
        return frozenset([value.kind])
    in_order = layout_kind(value.layout) in ("", "block", "any")
    if value.kind == "rows" and value.axis == 0 and in_order and (not value.degree or value.zero):
        return frozenset(["gather"])
    return frozenset()


def _judge(value: Value, op: str) -> Tuple[str, str]:
    """Return the verdict, and its reason."""
    if value.kind == "noise":
        return "unknown", "Cannot tell: it is random draws of an unknown shape."
    if value.kind == "unknown":
        return "unknown", f"Cannot tell: {_described(value.reason)}."
    if value.kind in ("mixed", "shuffled"):
        cure = value.reason.cure if value.reason is not None else ""
        return "wrong", f"{_described(value.reason)}." + (f" To be exact, {cure}." if cure else "")
    what = describe_value(value)
    fitting = _fitting(value)
    if op in fitting:
        return "exact", f"It is {what}."
    if op == "last":
        return "unknown", f"It is {what}; the last slice's value is the result."
    return "wrong", f"It is {what}, declared {op!r}: {_cure(value, op, fitting)}."


def _cure(value: Value, op: str, fitting: FrozenSet[str]) -> str:
    if value.kind == "fixed" and value.steady:
        once = "it would count once for each rank"
        why = "each rank would add a copy" if op == "gather" else once
        return f"{why}. To be exact, declare it 'avg'"
    if value.kind == "rows":
        if value.degree:
            return (
                "each row was divided (or multiplied) by its rank's number of rows, as in the "
                "gradient of a mean. To be exact, use a sum over rows in place of the mean, "
                "declare it 'gather', and divide after the call"
            )
        if value.axis != 0:
            return (
                f"its rows lie along axis {value.axis}. To be exact, transpose it so that they "
                f"lie along axis 0, and declare it 'gather'"
            )
        if not fitting:
            return (
                "its rows are not in the order of the inputs. To be exact, gather them in that "
                "order, and reorder them after the call"
            )
        return "to be exact, declare it 'gather', or return its mean or sum over axis 0"
    if fitting == {"sum"} and op == "avg":
        return "to be exact, declare it 'sum', or take the mean over rows, as a training loss needs"
    if fitting:
        return "to be exact, declare it " + " or ".join(repr(name) for name in sorted(fitting))
    if value.kind == "position":
        return "to be exact, count the rows after the call"
    return (
        "no op fits. To be exact, return the sum over rows with 'sum', the number of rows too, "
        "and scale after the call"
    )


# ---- naming nodes ----------------------------------------------------------------------------


def _described(reason: Optional[Reason]) -> str:
    if reason is None:
        return "the graph has something unknown"
    return reason.text if reason.node is None else f"{_node(reason.node)} {reason.text}"


def _node(node: Any) -> str:
    """Return an operation's name, its result's name if it has one, and its line."""
    name = next((output.name for output in node.outputs if output.name), None)
    text = _shorten(str(node.op))
    text += f" (named {name!r})" if name else ""
    place = _written_at(node.outputs[0])
    return text + (f" at {place}" if place else "")


_NOT_USERS = (NAME, ADAPTER.partition(".")[0], "synk_core")


def _written_at(variable: Any) -> str:
    """Return the user's line that made a variable: the innermost of neither engine nor ours."""
    traces: Sequence[Any] = getattr(variable.tag, "trace", None) or ()
    for trace in traces[:1]:
        for frame in reversed(trace):
            filename, line = str(frame[0]), frame[1]
            if not any(f"{os.sep}{name}{os.sep}" in filename for name in _NOT_USERS):
                return f"{os.path.basename(filename)}:{line}"
    return ""


def _shorten(text: str, length: int = 60) -> str:
    text = text.replace(",no_inplace", "")
    return text if len(text) <= length else text[: length - 3] + "..."


def wrong(verdicts: Sequence[Verdict]) -> List[Verdict]:
    """Return the verdicts to warn of when a function is built."""
    return [verdict for verdict in verdicts if verdict.verdict == "wrong"]


class Verdicts(List[Verdict]):
    """One verdict for each output; as text, a report.

    Attributes:
        updates: one for each update.
    """

    def __init__(self, outputs: Sequence[Verdict] = (), updates: Sequence[Verdict] = ()) -> None:
        super().__init__(outputs)
        self.updates = list(updates)

    def __str__(self) -> str:
        return describe(self, self.updates)


def check_outputs(inputs: Any, outputs: Any, *, bcast_inputs: Any = ()) -> Verdicts:
    """Check outputs before a function is built of them; it needs no runtime.

    Args:
        inputs, outputs, bcast_inputs: those of `Runtime.function`.

    Returns:
        A verdict for each output, as `Runtime.check` returns them.

    Raises:
        SpecError, InputTypeError, OpError: as `Runtime.function`.
    """
    return Verdicts(check_spec(make_spec(inputs, outputs, bcast_inputs=bcast_inputs)))


def warn_of_wrong(spec: FunctionSpec) -> None:
    """Warn of outputs that are certainly wrong, at the user's line."""
    what = f"function {spec.name!r}" if spec.name else "this function"
    try:
        bad = wrong(check_spec(spec))
    except Exception as error:  # noqa: BLE001 - a bug of the check must not refuse a function
        text = f"could not be checked ({type(error).__name__}: {error}); please report it"
        warn_user(f"{what} {text}", DecompositionWarning)
        return
    if bad:
        text = f"{what} cannot be split over rows as it is:\n{describe(bad)}"
        warn_user(text, DecompositionWarning)
