"""Decide whether each output of a function, with its op, is exact on any split of the rows.

The check reads the graph and runs nothing. "wrong" follows from the structure: results of parts of
the rows cannot be combined to the result of all. Terms that happen to cancel are not recognized. If
the check cannot follow a graph, it is "unknown", never "wrong".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

from synk_core._graph.leaves import differs_by_rank, lineage_of
from synk_core._graph.random_streams import is_random_state
from synk_core._graph.spec import FunctionSpec, make_spec
from synk_core._warn import warn_user
from synk_core.engine import ADAPTER, NAME
from synk_core.exceptions import DecompositionWarning

from . import nets, tensors  # noqa: F401 - they register their rules
from .scalars import added, describe_value
from .walk import FIXED, REDUCED, Reason, Value, Walk, rows, scalar_name, unknown


@dataclass(frozen=True)
class Verdict:
    """The verdict on one output or update.

    Attributes:
        position: index among the outputs, or among the updates.
        output: the output's name, or a short form; of an update, the shared variable's.
        op: the op that collects it; of an update, the op over slices.
        verdict: "exact", "wrong", or "unknown" (the check cannot decide). An update is "exact" if
            it is the same on all ranks after a call, or if a collective over the ranks' new values,
            or what was added to the old one, makes it that of one process.
        reason: a description of it, the node that matters, and the cure.
        differs: whether ranks have different values after a call, of an update.
    """

    position: int
    output: str
    op: Optional[str]
    verdict: str
    reason: str
    differs: bool = False


class Verdicts(List[Verdict]):
    """One verdict for each output; as text, a report.

    Attributes:
        updates: one for each update.
    """

    def __init__(self, outputs: Sequence[Verdict] = (), updates: Sequence[Verdict] = ()) -> None:
        super().__init__(outputs)
        self.updates = list(updates)

    def __str__(self) -> str:
        shown = [(one, f"{one.output}, op {one.op!r}") for one in self]
        for one in self.updates:
            shown.append((one, f"update {one.output}" + ", differs between ranks" * one.differs))
        lines = [] if shown else ["no outputs: nothing to check"]
        for one, text in shown:
            mark = "WRONG" if one.verdict == "wrong" else one.verdict
            lines += [f"{mark:<7}  [{one.position}] {text}", f"         {one.reason}"]
        return "\n".join(lines)


def check_spec(spec: FunctionSpec) -> Verdicts:
    """Return a verdict for each output, and for each update but those of random states.

    Rows are along axis 0, or `row_axes`, of the scattered inputs, and along axis 0 of the sliceable
    shared variables. With neither there are no rows to split, and every output is exact.
    """
    walk, lineage = _walk(spec), lineage_of(spec)
    pairs = enumerate(zip(spec.outputs, spec.output_ops))
    outputs = [_verdict(walk, place, variable, op) for place, (variable, op) in pairs]
    ops = {id(target): op for target, _, op in spec.accumulated}
    updates = []
    for place, (target, new, _, leaves) in enumerate(lineage.updates):
        if is_random_state(target):
            continue
        op = ops.get(id(target))
        value = FIXED if walk is None else _of_update(walk, target, new)
        differs = differs_by_rank(leaves, spec)
        by_slice = not differs and op in ("sum", "prod") and not lineage.has_reductions
        # Ranks reduce it to the same value, perhaps not that of one process.
        meets = walk is not None and "meets" in walk.marks.get(new, ())
        verdict, reason = "exact", "It is the same on all ranks."
        if value.kind == "mixed":
            verdict, reason = "wrong", f"{_described(value.reason)}. {_CURE_OF_UPDATES}"
        elif by_slice:
            verdict, reason = "unknown", f"Op {op!r} takes it once for each slice; use op 'last'."
        elif (differs or meets) and not (value.steady or _is_combined(value)):
            verdict, reason = "unknown", f"Cannot tell: {_described(value.reason)}."
        elif differs:
            reason = f"It is {describe_value(value)}, of each rank: combine them after each call."
        name, differs = _shorten(str(target)), differs or by_slice
        updates.append(Verdict(place, name, op, verdict, reason, differs))
    return Verdicts(outputs, updates)


_CURE_OF_UPDATES = (
    "No collective makes it that of one process. To train, build the step with "
    "make_train_function(loss, params, inputs, updates.adam) of synkhronos.extensions."
)


def _of_update(walk: Walk, target: Any, new: Any) -> Value:
    """Return the value of an update; or of its addition to the old value, if only that can be
    combined."""
    value, terms = walk.value(new), []
    while not _is_combined(value) and new is not target:
        name = scalar_name(new.owner)
        if name not in ("Add", "Sub"):
            return value
        others = list(new.owner.inputs)
        new = others.pop(others.index(target) if name == "Add" and target in others else 0)
        terms += [walk.value(other) for other in others]
    if not terms or any(term.kind not in ("sum", "fixed") for term in terms):
        return value
    more = added(None, "Add", terms)
    return more if _is_combined(more) else value


def _is_combined(value: Value) -> bool:
    """Return whether some op, or a concatenation, combines such values of parts."""
    if value.kind in ("sum", "fixed"):
        return value.degree in (0, 1)
    return value.kind in REDUCED or (value.kind == "rows" and value.axis == 0)


def _walk(spec: FunctionSpec) -> Optional[Walk]:
    """Return a walk that starts from the inputs with rows; None if there are none."""
    sources = [*spec.variables[: spec.n_scattered], *spec.sliceable]
    if not sources:
        return None
    axes = [*spec.row_axes, *(0 for _ in spec.sliceable)]
    walk = Walk({variable: _source(variable, axis) for variable, axis in zip(sources, axes)})
    # As in the engine, each replacement is built with those before it in place.
    for key, replacement in spec.givens:
        walk.values[key] = walk.value(replacement)
        walk.marks[key] = walk.marks.get(replacement, set())
    return walk


def _source(variable: Any, axis: int) -> Value:
    broadcastable = getattr(variable.type, "broadcastable", None)
    if broadcastable is None or not broadcastable or broadcastable[axis]:
        return unknown(None, f"rows of {variable} ({variable.type}) are not along axis {axis}")
    return rows(axis)


def _verdict(walk: Optional[Walk], place: int, variable: Any, op: Optional[str]) -> Verdict:
    name = _shorten(str(variable))
    if op is None or walk is None:
        masters = "It is the master's own result, of its own rows."
        reason = masters if op is None else "No input is scattered: there are no rows."
        return Verdict(place, name, op, "exact", reason)
    value = walk.value(variable)
    if value.items is not None:
        value = FIXED if value.steady else unknown(None, "uses a shape as data")
    verdict, reason = _judge(value, op)
    if verdict == "exact":
        reason += "".join(_NOTES[mark] for mark in sorted(walk.marks.get(variable, ())))
    return Verdict(place, name, op, verdict, reason)


_NOTES = {
    "draws": " Random draws are part of it: equal in distribution, not in numbers.",
    "meets": " It is computed with an in-graph all_reduce or all_gather: exact on any split over "
    "ranks; of each slice if the call is sliced.",
}


def _fitting(value: Value, op: str) -> Tuple[Sequence[str], str]:
    """Return the exact ops for a value, and the cure if it is declared this one."""
    if value.steady:
        of_equal = {0.0: ["sum", "prod"], 1.0: ["prod"]}.get(value.literal, [])  # type: ignore[arg-type]
        cure = "it would count once for each rank. To be exact, declare it 'avg'"
        return ["avg", "max", "min", "last", *of_equal], cure
    if value.kind == "rows":
        cure = "to be exact, declare it 'gather', or return its mean or sum over axis 0"
        if value.axis:
            cure = (
                f"its rows lie along axis {value.axis}. To be exact, transpose it, and declare it "
                f"'gather'"
            )
        if value.degree:
            cure = (
                "each row was divided (or multiplied) by its rank's number of rows, as in the "
                "gradient of a mean. To be exact, use a sum over rows in place of the mean, "
                "declare it 'gather', and divide after the call"
            )
        return ["gather"] if value.axis == 0 and (not value.degree or value.zero) else [], cure
    of_sum = {0.0: ["avg"], 1.0: ["sum"]}.get(value.degree, [])
    fitting = of_sum if value.kind in ("sum", "fixed") else [value.kind]
    if not fitting:
        return [], (
            "no op fits. To be exact, return the sum over rows with 'sum', and scale it after the "
            "call"
        )
    mean = ", or take the mean over rows, as a training loss needs"
    cure = f"to be exact, declare it {fitting[0]!r}"
    return fitting, cure + mean * (fitting == ["sum"] and op == "avg")


def _judge(value: Value, op: str) -> Tuple[str, str]:
    if value.kind in ("unknown", "position"):
        return "unknown", f"Cannot tell: {_described(value.reason)}."
    if value.kind == "mixed":
        cure = value.reason.cure if value.reason is not None else ""
        return "wrong", f"{_described(value.reason)}." + (f" To be exact, {cure}." if cure else "")
    what = describe_value(value)
    fitting, cure = _fitting(value, op)
    if op in fitting:
        return "exact", f"It is {what}."
    if op == "last":
        return "unknown", f"It is {what}; the last slice's value is the result."
    return "wrong", f"It is {what}, declared {op!r}: {cure}."


def _described(reason: Optional[Reason]) -> str:
    if reason is None:
        return "the graph has something unknown"
    return reason.text if reason.node is None else f"{_node(reason.node)} {reason.text}"


def _node(node: Any) -> str:
    """Return an operation's name, its result's name if it has one, and the user's line: the
    innermost one of neither engine nor this project."""
    name = next((output.name for output in node.outputs if output.name), None)
    text = _shorten(str(node.op)) + (f" (named {name!r})" if name else "")
    ours = [f"{os.sep}{name}{os.sep}" for name in (NAME, ADAPTER.partition(".")[0], "synk_core")]
    for trace in (getattr(node.outputs[0].tag, "trace", None) or ())[:1]:
        for filename, line, *_ in reversed(trace):
            if not any(name in str(filename) for name in ours):
                return f"{text} at {os.path.basename(filename)}:{line}"
    return text


def _shorten(text: str, length: int = 60) -> str:
    text = text.replace(",no_inplace", "")
    return text if len(text) <= length else text[: length - 3] + "..."


def check_outputs(inputs: Any, outputs: Any, *, bcast_inputs: Any = ()) -> Verdicts:
    """Check outputs without a runtime, before a function is built of them.

    Args:
        inputs, outputs, bcast_inputs: as for `Runtime.function`.

    Returns:
        A verdict for each output, as `Runtime.check` returns them.

    Raises:
        SpecError, InputTypeError, OpError: as `Runtime.function`.
    """
    return check_spec(make_spec(inputs, outputs, bcast_inputs=bcast_inputs))


def warn_of_wrong(spec: FunctionSpec) -> None:
    """Warn of outputs and updates that are certainly wrong, at the user's line."""
    what = f"function {spec.name!r}" if spec.name else "this function"
    try:
        verdicts = check_spec(spec)
    except Exception as error:  # noqa: BLE001 - a bug of the check must not refuse a function
        text = f"could not be checked ({type(error).__name__}: {error}); please report it"
        warn_user(f"{what} {text}", DecompositionWarning)
        return
    both = (verdicts, verdicts.updates)
    bad = Verdicts(*([one for one in some if one.verdict == "wrong"] for some in both))
    if bad or bad.updates:
        warn_user(f"{what} cannot be split over rows as it is:\n{bad}", DecompositionWarning)
