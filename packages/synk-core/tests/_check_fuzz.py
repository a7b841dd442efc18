"""The verdicts of `check` on random graphs, and the proof of each by numbers.

All variables of a graph are outputs under every op. They are computed on all rows, and on each of
up to four uneven shares, which NumPy puts together. Values are multiples of 1/4, so that sums are
the same in any order.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

import numpy as np
from _check_graphs import (
    BROADCAST,
    SCATTERED,
    WITH_ROWS,
    Computer,
    Graph,
    draw_data,
    draw_graph,
    q,
    v,
)
from _check_words import io_toposort

from synk_core._graph.rowwise.check import check_spec
from synk_core._graph.rowwise.walk import FAILED
from synk_core._graph.spec import make_spec
from synk_core._plan.ops import check_dtype
from synk_core.exceptions import SynkError

REFUSED = "raises"
OPS = ("avg", "sum", "max", "min", "prod", "gather")


def draw_split(rng: Any, n: int) -> List[int]:
    """The rows of one to four shares, of one row at least each."""
    cuts = rng.choice(np.arange(1, n), size=min(int(rng.randint(0, 4)), n - 1), replace=False)
    return list(np.diff([0, *sorted(cuts), n]))


def shared_out(values: Dict[Any, Any], split: Sequence[int]) -> List[Dict[Any, Any]]:
    """The values of each share: its own rows, and all else."""
    stops = np.cumsum(split)
    return [
        {**values, **{variable: values[variable][stop - n : stop] for variable in WITH_ROWS}}
        for n, stop in zip(split, stops)
    ]


def combined(parts: Sequence[Any], split: Sequence[int], op: str) -> Any:
    """The shares' results put together by NumPy; None if they do not fit, or one is missing."""
    if any(part is None for part in parts):
        return None
    if op == "gather":
        parts = [np.atleast_1d(part) for part in parts]
        fits = len({part.shape[1:] for part in parts}) == 1
        return np.concatenate(parts) if fits else None
    if len({part.shape for part in parts}) > 1:
        return None
    stacked = np.stack(parts)
    with np.errstate(all="ignore"):
        if op == "avg":
            shape = (-1, *[1] * (stacked.ndim - 1))
            return (stacked * np.reshape(split, shape)).sum(axis=0) / sum(split)
        reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
        return reduce.reduce(stacked, axis=0, dtype=stacked.dtype)


def is_equal(got: Any, whole: Any, op: str, tolerance: float) -> bool:
    """Whether two results are the same but for rounding, where that of all rows is finite."""
    whole = np.atleast_1d(whole) if op == "gather" else whole
    if got.shape != whole.shape:
        return False
    finite = np.isfinite(whole)
    got, whole = got[finite].astype(float), whole[finite].astype(float)
    return bool(np.allclose(got, whole, rtol=tolerance, atol=tolerance))


def _is_allowed(op: str, variable: Any) -> bool:
    try:
        check_dtype(op, variable.dtype, "")
    except SynkError:
        return False
    return True


class Found(NamedTuple):
    """A verdict that numbers contradict, with the lines of the graph."""

    program: str
    op: str
    verdict: str
    reason: str
    numbers: str = ""


def look_at(
    graph: Graph, computer: Computer, data: Sequence[Dict[Any, Any]], rng: Any, counts: Counter
) -> List[Found]:
    """Every verdict on a graph's variables that does not go with the numbers."""
    asked = [
        (name, op)
        for name in graph.variables
        for op in OPS
        if _is_allowed(op, graph.variables[name])
    ]
    outputs = [(graph.variables[name], op) for name, op in asked]
    spec = make_spec(SCATTERED, outputs, bcast_inputs=BROADCAST, sliceable_shareds=[q])
    verdicts = check_spec(spec)
    differences: Dict[Tuple[str, str], str] = {}
    for values in data:
        _compare(graph, computer, values, draw_split(rng, len(values[v])), asked, differences)
    found = []
    exact = {name for (name, _), each in zip(asked, verdicts) if each.verdict == "exact"}
    for name, variable in graph.variables.items():
        for kind in kinds_of(variable):
            counts["exact", kind] += name in exact
    for (name, op), verdict in zip(asked, verdicts):
        counts[verdict.verdict] += 1
        differs = differences.get((name, op))
        if verdict.verdict == "exact" and differs == REFUSED:
            differs = None
        broken = FAILED in verdict.reason
        if broken or (verdict.verdict == "wrong") == (differs is None):
            if verdict.verdict != "unknown" or broken:
                kind = "broken" if broken else verdict.verdict
                program = graph.program(name)
                found.append(Found(program, op, kind, verdict.reason, differs or ""))
    return found


def kinds_of(variable: Any) -> Set[str]:
    """The operations that a variable is computed by."""
    ops = [node.op for node in io_toposort([], [variable])]
    names = {type(op).__name__ for op in ops}
    return names | {
        f"Blockwise {type(op.core_op).__name__}" for op in ops if hasattr(op, "core_op")
    }


def _compare(
    graph: Graph,
    computer: Computer,
    values: Any,
    split: Any,
    asked: Any,
    differences: Dict[Tuple[str, str], str],
) -> None:
    results = []
    for part in [values, *shared_out(values, split)]:
        computer.run(part)
        results.append({name: computer.value(z) for name, z in graph.variables.items()})
    scale = max((_largest(result) for result in results[0].values()), default=1.0)
    for name, op in asked:
        if differences.get((name, op), REFUSED) != REFUSED:
            continue
        whole, parts = results[0][name], [result[name] for result in results[1:]]
        got = combined(parts, split, op)
        if got is None or whole is None:
            # A call that raises gives no wrong number.
            differences[name, op] = REFUSED
            continue
        tolerance = (1e-4 if _is_narrow(graph, name) else 1e-9) * scale
        if graph.variables[name].dtype[0] in "iub":
            tolerance = 0.0
        if not is_equal(got, whole, op, tolerance):
            differences[name, op] = f"shares of {split}: {parts} give {got}, all rows {whole}"


def _is_narrow(graph: Graph, name: str) -> bool:
    """Whether some of it has fewer bits than float64: floats of bools are float32."""
    if re.search(r"float(32|16)|i8|u8|int8|int16|bo\b|uint", graph.program(name)):
        return True
    apply = graph.variables[name].owner
    nodes = io_toposort([], [graph.variables[name]]) if apply else []
    return any(
        getattr(out, "dtype", "") in ("float16", "float32") for n in nodes for out in n.outputs
    )


def _largest(result: Any) -> float:
    if result is None:
        return 1.0
    return float(np.max(np.abs(result[np.isfinite(result)].astype(float)), initial=1.0))


KINDS = ("any", "positive", "negative", "zero", "any", "any", "positive", "zero")


def examine(graphs: int, seed: int, counts: Counter) -> List[Found]:
    """Draw so many graphs, and collect what numbers contradict."""
    found = []
    for number in range(graphs):
        rng = np.random.RandomState((seed * 1_000_003 + number) % 2**32)
        computer = Computer()
        data = [draw_data(rng, kind) for kind in KINDS]
        graph = draw_graph(rng, computer, data[rng.randint(len(data))])
        if graph.lines:
            found += look_at(graph, computer, data, rng, counts)
        counts["graphs"] += 1
    return found


def smallest(found: Sequence[Found], verdict: str) -> List[Found]:
    """Those of one verdict, the shortest programs first."""
    chosen = [each for each in found if each.verdict == verdict]
    return sorted(chosen, key=lambda each: (each.program.count("\n"), len(each.program)))


def told(found: Found) -> str:
    verdict = f"op {found.op!r}: {found.verdict}, {found.reason}"
    return f"{found.program}\n    {verdict}\n    {found.numbers}"
