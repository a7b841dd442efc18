"""The verdicts of `check` on random graphs, and the proof of each by numbers.

All variables of a graph are outputs under every op. They are computed on all rows, and on each of
up to four uneven shares, which NumPy puts together. Values are multiples of 1/4, so that sums are
the same in any order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Sequence, Set, Tuple

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


def kinds_of(variable: Any) -> Set[str]:
    """The operations that a variable is computed by."""
    ops = [node.op for node in io_toposort([], [variable])]
    names = {type(op).__name__ for op in ops}
    return names | {
        f"Blockwise {type(op.core_op).__name__}" for op in ops if hasattr(op, "core_op")
    }


def _look_at(
    graph: Graph, computer: Computer, data: Sequence[Dict[Any, Any]], rng: Any, counts: Counter
) -> List[Tuple[str, str]]:
    """The verdicts on a graph's variables that do not go with the numbers."""
    variables = graph.variables
    asked = [(name, op) for name in variables for op in OPS if _is_allowed(op, variables[name])]
    outputs = [(variables[name], op) for name, op in asked]
    spec = make_spec(SCATTERED, outputs, bcast_inputs=BROADCAST, sliceable_shareds=[q])
    verdicts = check_spec(spec)
    differences: Dict[Tuple[str, str], str] = {}
    for values in data:
        _compare(graph, computer, values, draw_split(rng, len(values[v])), asked, differences)
    found = []
    exact = {name for (name, _), each in zip(asked, verdicts) if each.verdict == "exact"}
    for name, variable in variables.items():
        counts.update(("exact", kind) for kind in kinds_of(variable) if name in exact)
    for (name, op), verdict in zip(asked, verdicts):
        counts[verdict.verdict] += 1
        differs = differences.get((name, op))
        if verdict.verdict == "exact" and differs == REFUSED:
            differs = None
        kind = "broken" if FAILED in verdict.reason else verdict.verdict
        contradicted = kind != "unknown" and (kind == "wrong") == (differs is None)
        if kind == "broken" or contradicted:
            why = f"op {op!r}: {verdict.verdict}, {verdict.reason}\n{differs}"
            found.append((kind, f"{graph.program(name)}\n{why}"))
    return found


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
    scale = max(_largest(result) for result in results[0].values())
    for name, op in asked:
        if differences.get((name, op), REFUSED) != REFUSED:
            continue
        whole, parts = results[0][name], [result[name] for result in results[1:]]
        got = combined(parts, split, op)
        if got is None or whole is None:
            # A call that raises gives no wrong number.
            differences[name, op] = REFUSED
            continue
        variable = graph.variables[name]
        tolerance = 0.0
        if variable.dtype[0] not in "iub":
            tolerance = (1e-4 if _is_narrow(variable) else 1e-9) * scale
        if not is_equal(got, whole, op, tolerance):
            differences[name, op] = f"shares of {split}: {parts} give {got}, all rows {whole}"


def _is_narrow(variable: Any) -> bool:
    """Whether some of it is computed with fewer bits than float64 has."""
    outputs = [output for node in io_toposort([], [variable]) for output in node.outputs]
    return any(getattr(output, "dtype", "") in ("float16", "float32") for output in outputs)


def _largest(result: Any) -> float:
    if result is None:
        return 1.0
    return float(np.max(np.abs(result[np.isfinite(result)].astype(float)), initial=1.0))


KINDS = ("any", "positive", "negative", "zero", "any", "any", "positive", "zero")


def examine(graphs: int, seed: int, counts: Counter) -> Dict[str, List[str]]:
    """Draw so many graphs; return what numbers contradict by verdict, shortest programs first."""
    found: Dict[str, List[str]] = {"exact": [], "broken": [], "wrong": []}
    for number in range(graphs):
        rng = np.random.RandomState((seed * 1_000_003 + number) % 2**32)
        computer = Computer()
        data = [draw_data(rng, kind) for kind in KINDS]
        graph = draw_graph(rng, computer, data[rng.randint(len(data))])
        if graph.lines:
            for kind, text in _look_at(graph, computer, data, rng, counts):
                found[kind].append(text)
        counts["graphs"] += 1
    return {kind: sorted(texts, key=len) for kind, texts in found.items()}
