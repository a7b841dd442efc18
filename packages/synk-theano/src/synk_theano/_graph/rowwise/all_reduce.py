"""What was reduced over all ranks in the middle of the graph no longer depends on the split."""

from __future__ import annotations

from typing import Any, List, Sequence, Union

from .walk import FIXED, Value, mixed, plain, rule, unknown


@rule("AllReduce")
def all_reduce(node: Any, values: List[Value]) -> Union[Value, Sequence[Value]]:
    """A sum or average over ranks, times a power of the rank's share of the rows."""
    value, op = plain(values[0]), node.op
    wanted = 1.0 if op.op == "sum" else 0.0
    if value.zero:
        return [value, FIXED]
    if value.kind in ("sum", "fixed"):
        if value.degree == wanted:
            return [Value("fixed", float(op.power)), FIXED]
        if value.steady:
            text = "adds up something that does not depend on the rows: it counts for each rank"
            return [mixed(node, text, "reduce it with 'avg'"), FIXED]
        text = "averages what is no mean over rows" if op.op == "avg" else "adds up what is no sum"
        cure = "reduce a mean over rows with 'avg', or a sum with 'sum'"
        return [mixed(node, text, cure), FIXED]
    return [unknown(node, "reduces over ranks what was not reduced over rows"), FIXED]
