"""Random calls of a drawn function: which rows, chosen how, handed over how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from _graphs import Graph, Leaf
from hypothesis import strategies as st

# Hypothesis likes small numbers best, but no rows should be no more than an exception.
COUNTS = st.one_of(
    st.sampled_from([5, 3, 2, 7, 1, 4, 0]), st.integers(0, 40).map(lambda i: (i + 13) % 41)
)


@dataclass
class Call:
    """The arguments of a call; and, per rank and leaf, the rows that it has to use."""

    arguments: List[Any] = field(default_factory=list)
    named: Dict[str, Any] = field(default_factory=dict)
    options: Dict[str, Any] = field(default_factory=dict)
    params: Dict[int, np.ndarray] = field(default_factory=dict)
    sliceables: Dict[int, np.ndarray] = field(default_factory=dict)
    rows: List[List[np.ndarray]] = field(default_factory=list)
    wants_own: bool = False


def values_for(leaf: Leaf, random: np.random.RandomState, *rows: int) -> np.ndarray:
    """Values for a variable: up to 2 with rows, up to 1 without."""
    top = 1 if leaf.role in ("shared", "bcast") else 2
    return np.asarray(random.randint(-top, top + 1, (*rows, *leaf.tail)), leaf.dtype)


def drawn_batch(draw: Any, length: int) -> Tuple[Any, np.ndarray, bool]:
    """A choice of rows, the rows that NumPy takes for it, and whether it needs the length."""
    bounds = st.none() | st.integers(-length, length)
    kind = draw(st.sampled_from(["none", "int", "slice", "list", "array", "mask"]))
    if kind == "none":
        return None, np.arange(length), True
    if kind == "int":
        count = draw(st.integers(-length, length))
        return count, np.arange(length)[:count], count < 0
    if kind == "slice":
        batch: Any = slice(
            draw(bounds), draw(bounds), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
        )
        plain = (batch.step or 1) > 0 and (batch.start or 0) >= 0 and (batch.stop or -1) >= 0
        return batch, np.arange(length)[batch], not plain
    if kind == "mask":
        mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        batch = np.array(mask, bool)
        return (mask if length and draw(st.booleans()) else batch), np.flatnonzero(batch), True
    most = 0 if not length else 50
    index = draw(st.lists(st.integers(-length, max(length - 1, 0)), max_size=most))
    if draw(st.booleans()):
        index = [abs(i) % max(length, 1) for i in index]
    dtype = draw(st.sampled_from(["int64", "int32", "int8"]))
    batch = np.array(index, dtype) if kind == "array" else index
    return batch, np.arange(length)[np.array(index, int)], any(i < 0 for i in index)


def _handed_over(draw: Any, runtime: Any, value: np.ndarray) -> Any:
    """The value as `Data`, or as an array of some layout."""
    layout = draw(st.sampled_from(["data", "plain", "plain", "strided", "fortran", "read-only"]))
    if layout == "data":
        return runtime.data(value, oversize=draw(st.sampled_from([1, 1.5])))
    if layout == "strided" and value.ndim:
        return np.repeat(value, 2, axis=0)[::2]
    if layout == "fortran":
        return np.asarray(value, order="F")
    if layout == "read-only":
        value = value.copy()
        value.setflags(write=False)
    return value


def drawn_call(
    draw: Any,
    graph: Graph,
    runtime: Any,
    random: np.random.RandomState,
    more_outputs: int,
    has_own: bool,
) -> Call:
    """A call of a function of `graph` with so many outputs more than the graph has."""
    call = Call()
    scattered = [i for i, leaf in enumerate(graph.leaves) if leaf.role == "scattered"]
    sliceable = [i for i, leaf in enumerate(graph.leaves) if leaf.role == "sliceable"]
    rows: Dict[int, List[np.ndarray]] = {}
    inputs: List[Any] = []
    counts: Optional[List[int]] = None
    if scattered:
        counts = _draw_scattered(draw, graph, runtime, random, call, scattered, rows, inputs)
    if sliceable:
        _draw_sliceable(draw, graph, runtime, random, call, sliceable, rows, counts)
    call.rows = [[rows[i][r] for i in sorted(rows)] for r in range(runtime.size)]
    names = [f"x{i}" for i in scattered]
    for i, leaf in enumerate(graph.params):
        if leaf.role == "bcast":
            call.params[i] = values_for(leaf, random)
            inputs.append(_handed_over(draw, runtime, call.params[i]))
            names.append(f"p{i}")
    by_position = draw(st.integers(0, len(inputs)))
    call.arguments = inputs[:by_position]
    call.named = dict(zip(names[by_position:], inputs[by_position:]))
    count = len(graph.outputs) + more_outputs
    if draw(st.integers(0, 2)) == 0:
        order = draw(st.permutations(range(count)))
        call.options["output_subset"] = list(order)[: draw(st.integers(0, count))]
    wanted = call.options.get("output_subset", range(count))
    call.wants_own = has_own and any(
        i < len(graph.outputs) and graph.outputs[i][2] is None for i in wanted
    )
    if not call.wants_own:
        num_slices = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 50]))
        if num_slices > 1 or draw(st.booleans()):
            call.options["num_slices"] = num_slices
    return call


def _draw_scattered(
    draw: Any,
    graph: Graph,
    runtime: Any,
    random: np.random.RandomState,
    call: Call,
    scattered: List[int],
    rows: Dict[int, List[np.ndarray]],
    inputs: List[Any],
) -> List[int]:
    length = draw(COUNTS)
    batch, chosen, relative = drawn_batch(draw, length)
    if batch is not None:
        call.options["batch"] = batch
    shares = np.array_split(np.arange(len(chosen)), runtime.size)
    mini = [not relative and draw(st.integers(0, 4)) == 0 for _ in scattered]
    if batch is not None and relative and len(scattered) > 1:
        mini[1:] = [draw(st.integers(0, 3)) == 0 for _ in scattered[1:]]
    for place, is_mini in zip(scattered, mini):
        more = 0 if relative and not is_mini else draw(st.sampled_from([0, 0, 3]))
        value = values_for(graph.leaves[place], random, length + more)
        rows[place] = [value[chosen[share]] for share in shares]
        if is_mini:
            lowest, highest = (min(chosen), max(chosen)) if len(chosen) else (0, -1)
            kept = value[lowest : highest + 1 + more]
            if not isinstance(batch, (int, slice, type(None))):
                kept = np.concatenate([value[chosen], value[:more]])
            held = runtime.data(kept, minibatch=True)
            inputs.append(held)
        else:
            inputs.append(_handed_over(draw, runtime, value))
    return [len(share) for share in shares]


def _draw_sliceable(
    draw: Any,
    graph: Graph,
    runtime: Any,
    random: np.random.RandomState,
    call: Call,
    sliceable: List[int],
    rows: Dict[int, List[np.ndarray]],
    counts: Optional[List[int]],
) -> None:
    """Values to scatter, and which of them each rank uses: as many as it has scattered rows."""
    size = runtime.size
    length = draw(COUNTS)
    if counts is not None:
        length = max(length, size) if draw(st.booleans()) else sum(counts)
    held = [len(share) for share in np.array_split(np.arange(length), size)]
    if counts is not None and length != sum(counts):
        chosen = [random.randint(-n, n, count) for n, count in zip(held, counts)]
        call.options["batch_s"] = [index.tolist() if index.size else index for index in chosen]
    elif counts is not None or draw(st.integers(0, 3)) == 0:
        chosen = [np.arange(n) for n in held]
    elif draw(st.booleans()):
        shortest = min(held)
        batch, _, _ = drawn_batch(draw, shortest)
        if isinstance(batch, (list, np.ndarray)) and np.asarray(batch).dtype == bool:
            batch = np.flatnonzero(batch)
        call.options["batch_s"] = batch
        chosen = [_positions(batch, n) for n in held]
    else:
        drawn = [drawn_batch(draw, n)[0] for n in held]
        # An int in a list would be a row, and None no choice: the same rows as slices.
        batches = [slice(0, b) if b is None or isinstance(b, int) else b for b in drawn]
        call.options["batch_s"] = batches
        chosen = [_positions(b, n) for b, n in zip(batches, held)]
    for place in sliceable:
        value = call.sliceables[place] = values_for(graph.leaves[place], random, length)
        parts = np.array_split(value, size)
        rows[place] = [part[index] for part, index in zip(parts, chosen)]


def _positions(batch: Any, length: int) -> np.ndarray:
    """The rows that NumPy takes."""
    if batch is None or isinstance(batch, int):
        return np.arange(length)[:batch]
    if isinstance(batch, list):
        batch = np.array(batch, bool if batch and isinstance(batch[0], bool) else int)
    return np.arange(length)[batch]
