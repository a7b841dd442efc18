"""Random functions, called in random ways, against serial Theano on the selected rows.

`_graphs` draws the functions, `_calls` how they are called. What must come back is what a serial
function, built of plain inputs only, gives for all selected rows; and every rank's shared
variables must be what it gives for that rank's rows.

Results are the same bits, but for averages: these are rounded once per part (ranks times slices).

With ``SYNK_TESTS=all`` each run draws others, many times as many, and shrinks those that fail.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from typing import Any, Dict, List

import numpy as np
import pytest
from _calls import Call, drawn_call, values_for
from _graphs import (
    ROUNDED,
    Graph,
    built,
    drawn_graph,
    given_value,
    reduced,
    target_dtype,
    updated,
    variable_of,
)
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from synk_core import Runtime
from synk_core.exceptions import SynkError
from synk_testing.engine import engine

LONGER = os.environ.get("SYNK_TESTS") == "all"
CASES = 2000 if LONGER else 30
CALLS = 5
RANKS = [(3, 2), *([(1, 0), (2, 0), (2, 1), (4, 1)] if LONGER else [])]
# Shrinking takes minutes: it is for those who ask for more cases.
drawing = settings(
    deadline=None,
    database=None,
    print_blob=True,
    max_examples=max(1, -(-CASES // (CALLS * len(RANKS)))),
    phases=list(Phase) if LONGER else [Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", params=RANKS, ids=lambda pair: f"{pair[0]}-ranks-master-{pair[1]}")
def ranks(request):
    """Runtimes of 1 to 4 ranks, the master in different places."""
    size, master = request.param
    with Runtime(size, master_rank=master) as opened:
        yield opened


class Case:
    """One graph on one runtime: the function, its serial twin, and what every rank holds."""

    def __init__(self, graph: Graph, runtime: Any, draw: Any) -> None:
        self.graph, self.runtime, self.draw = graph, runtime, draw
        self.random = np.random.RandomState(draw(st.integers(0, 999)))
        self.mode = self._mode()
        self.leaves = [
            engine.shared(values_for(leaf, self.random, 0), name=f"x{i}")
            if leaf.role == "sliceable"
            else variable_of(leaf, f"x{i}")
            for i, leaf in enumerate(graph.leaves)
        ]
        self.params = [
            engine.shared(values_for(leaf, self.random), name=f"p{i}")
            if leaf.role == "shared"
            else variable_of(leaf, f"p{i}")
            for i, leaf in enumerate(graph.params)
        ]
        self.targets = []
        for form, number, _ in graph.updates:
            node = graph.nodes[number]
            zeros = np.zeros(
                () if form == "counter" else node.tail, target_dtype(graph, form, node)
            )
            self.targets.append(engine.shared(zeros, name=f"t{len(self.targets)}"))
        self.held = [[t.get_value() for t in self.targets]] * runtime.size
        self.olds: List[Any] = []
        if self.targets:
            runtime.let_drift(self.targets)  # ranks keep what they have of their own rows
        self.function = self._function()
        self.serial = self._serial()

    def _mode(self) -> Any:
        """Mostly what is built quickly; some optimised graphs, and a few compiled ones."""
        kind = self.draw(st.integers(0, 29))
        if kind == 13:
            return None
        return engine.Mode("py", "fast_run") if kind % 5 == 4 else "FAST_COMPILE"

    def _function(self) -> Any:
        graph, draw = self.graph, self.draw
        values = built(graph, self.leaves, self.params)
        outputs: List[Any] = []
        for form, number, op in graph.outputs:
            output = reduced(form, values[number])
            outputs.append(output if op == "avg" and draw(st.booleans()) else (output, op))
        updates: Any = []
        for place, (form, number, op) in enumerate(graph.updates):
            target = self.targets[place]
            new = updated(form, values[number], target)
            plain = form in ("mean0", "counter") and draw(st.booleans())
            updates.append((target, new) if plain else (target, new, op))
            if draw(st.booleans()):
                # What it held before the call, the variable itself or computed from it.
                as_it_is = draw(st.booleans())
                self.olds.append((place, np.array if as_it_is else np.abs))
                outputs.append((target if as_it_is else abs(target), "max"))
        if all(len(item) == 2 for item in updates):
            updates = draw(st.sampled_from([list, tuple, OrderedDict, dict]))(updates)
        givens = [
            (variable, given_value(self.leaves[leaf.source]))
            for variable, leaf in zip(self.leaves, graph.leaves)
            if leaf.role == "given"
        ]
        self.single = len(outputs) == 1 and draw(st.booleans())
        return self.runtime.function(
            [v for v, leaf in zip(self.leaves, graph.leaves) if leaf.role == "scattered"],
            outputs[0] if self.single else outputs,
            bcast_inputs=[p for p, leaf in zip(self.params, graph.params) if leaf.role == "bcast"],
            updates=updates,
            givens=dict(givens) if draw(st.booleans()) else givens,
            sliceable_shareds=[
                v for v, leaf in zip(self.leaves, graph.leaves) if leaf.role == "sliceable"
            ],
            mode=self.mode,
            on_unused_input="ignore",
            name="drawn",
        )

    def _serial(self) -> Any:
        """(rows, parameters, targets) -> outputs, new values."""
        graph = self.graph
        leaves = [variable_of(leaf, "x") for leaf in graph.leaves]
        params = [variable_of(leaf, "p") for leaf in graph.params]
        targets = [target.type() for target in self.targets]
        values = built(
            graph,
            [
                given_value(leaves[leaf.source]) if leaf.role == "given" else variable
                for leaf, variable in zip(graph.leaves, leaves)
            ],
            params,
        )
        outputs = [reduced(form, values[i]) for form, i, _ in graph.outputs]
        news = [
            updated(form, values[i], target) for (form, i, _), target in zip(graph.updates, targets)
        ]
        with_rows = [v for v, leaf in zip(leaves, graph.leaves) if leaf.role != "given"]
        return engine.function(
            [*with_rows, *params, *targets],
            outputs + news,
            mode=self.mode,
            on_unused_input="ignore",
        )

    def call_and_check(self) -> None:
        """Draw a call, make it, and compare what it gives and what it leaves behind."""
        runtime, graph = self.runtime, self.graph
        for_master = any(op is None for _, _, op in graph.outputs)
        call = drawn_call(self.draw, graph, runtime, self.random, len(self.olds), for_master)
        for place, value in call.sliceables.items():
            runtime.collectives.scatter(self.leaves[place], value)
        params = [
            call.params.get(i, p.get_value() if leaf.role == "shared" else None)
            for i, (p, leaf) in enumerate(zip(self.params, graph.params))
        ]
        counts = [len(rows[0]) for rows in call.rows]
        computing = [r for r, count in enumerate(counts) if count] or [runtime.master]
        if call.wants_own and computing != [runtime.master] and runtime.master not in computing:
            with pytest.raises(SynkError, match="master"):
                self._call(call)
            return
        whole = [np.concatenate(parts) for parts in zip(*call.rows)]
        try:
            expected = self.serial(*whole, *params, *self.held[0])
            each = {r: self.serial(*call.rows[r], *params, *self.held[r]) for r in computing}
        except ValueError:
            if sum(counts):
                raise
            # The maximum of no rows is an error here and there.
            call.options.pop("output_subset", None)
            call.options.pop("num_slices", None)
            with pytest.raises(ValueError, match=r"zero-size|empty"):
                self._call(call)
            # As in Theano, operations that worked in place before it failed have done so.
            self.held = self._read()
            return
        results = self._call(call)
        parts = len(computing) * call.options.get("num_slices", 1)
        everything = range(len(graph.outputs) + len(self.olds))
        wanted = call.options.get("output_subset", everything)
        assert len(results) == len(wanted)
        for result, place in zip(results, wanted):
            if place >= len(graph.outputs):
                target, meaning = self.olds[place - len(graph.outputs)]
                old = [meaning(self.held[r][target]) for r in computing]
                np.testing.assert_array_equal(result, np.max(old, axis=0))
                continue
            form, _, op = graph.outputs[place]
            judge = each[runtime.master] if op is None else expected
            self._compare(result, judge[place], form, parts, f"output {place}, {op}")
        self._check_held(each, parts, counts)
        assert self.function.rows is not None
        if sum(counts):
            assert list(self.function.rows) == counts

    def _call(self, call: Call) -> List[Any]:
        results = self.function(*call.arguments, **call.named, **call.options)
        return [results] if self.single and "output_subset" not in call.options else results

    def _read(self) -> List[List[np.ndarray]]:
        get_value = self.runtime.collectives.get_value
        return [
            [np.array(value) for value in get_value(rank, self.targets)] if self.targets else []
            for rank in range(self.runtime.size)
        ]

    def _check_held(self, each: Dict[int, List[np.ndarray]], parts: int, counts: List[int]) -> None:
        """Each rank's variables against the new values for its rows; others are as before.

        Without rows, only counters go on.
        """
        if not self.targets:
            return
        graph = self.graph
        held = self._read()
        for rank, values in enumerate(held):
            if not counts[rank]:
                for value, before, (form, _, _) in zip(values, self.held[rank], graph.updates):
                    np.testing.assert_equal(value, before + 1 if form == "counter" else before)
                continue
            for place, (form, _, _) in enumerate(graph.updates):
                wanted = each[rank][len(graph.outputs) + place]
                self._compare(values[place], wanted, form, parts, f"update {place} on rank {rank}")
        self.held = held

    def _compare(self, result: Any, expected: Any, form: str, parts: int, what: str) -> None:
        result, expected = np.asarray(result), np.asarray(expected)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype), what
        limit = 0.0
        if form in ROUNDED:
            dtype = min(result.dtype, np.dtype(self.graph.dtype), key=lambda each: each.itemsize)
            limit = np.finfo(dtype).eps * (parts + 8) * (2 * self.graph.largest + 3)
        what = f"{what}, {form} in {parts} parts"
        np.testing.assert_allclose(result, expected, rtol=0, atol=limit, err_msg=what)


def test_any_function_called_in_any_way_gives_the_serial_result(ranks):
    @drawing
    @given(st.data())
    def run(data):
        graph = data.draw(drawn_graph())
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # the mean of no rows
            case = Case(graph, ranks, data.draw)
            for _ in range(CALLS):
                case.call_and_check()

    # Other functions for other numbers of ranks; and for other runs, if there are more cases.
    (run if LONGER else seed(10 * ranks.size + ranks.master)(run))()
