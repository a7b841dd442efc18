"""`lint`: what is wrong with a program as a whole; and, as important, what is not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synk_core._graph.facts import Event, FunctionFacts, facts_of
from synk_core._graph.spec import make_spec
from synk_core._watch.lint import lint
from synk_testing.engine import T, engine

x = T.matrix("x")

NAMES = {0: "w", 1: "grad", 2: "data", 3: "velocity", 4: "total", 5: "features", 6: "v"}
NUMBERS = {name: number for number, name in NAMES.items()}


def numbers(names):
    return frozenset(NUMBERS[name] for name in names)


def function(name, reads="", updates=None, own="", sliceable="", has_rows=True):
    """Facts. `updates`: what each update is computed from; `own`: those that rows reach."""
    sources = {NUMBERS[u]: numbers(read.split()) for u, read in (updates or {}).items()}
    return FunctionFacts(
        function_id=100 + sum(map(ord, name)),
        name=name,
        reads=numbers(reads.split()).union(*sources.values()),
        updates=frozenset(sources),
        rank_dependent_updates=numbers(own.split()),
        sliceable=numbers(sliceable.split()),
        sources=sources,
        has_rows=has_rows,
        shown=numbers(reads.split()),
    )


FUNCTIONS = {
    each.name: each
    for each in (
        function("gradient", updates={"grad": "w"}, own="grad"),
        function("update", updates={"w": "w grad"}, has_rows=False),
        function("momentum", updates={"velocity": "velocity grad", "w": "w velocity grad"}),
        function("validate", reads="w"),
        function("local step", reads="w", updates={"w": "w"}, own="w"),
        function("count", updates={"total": "total"}, own="total"),
        function("read total", reads="total", has_rows=False),
        function("sliced", reads="w data", sliceable="data"),
        function("whole", reads="data", updates={"w": "data"}),
        function("normalize", updates={"data": "data"}),
    )
}


class Program(NamedTuple):
    """`text`: calls and collectives; `says`: findings, as severity, rule and variable."""

    what: str
    text: str
    says: str = ""
    size: object = None
    uncalled: str = ""

    @property
    def functions(self):
        """Those that the text calls, and others that there are."""
        names = dict.fromkeys(parts(f"{self.uncalled};{self.text}"))
        return [FUNCTIONS[name] for name in names if name in FUNCTIONS]


def parts(text):
    return [part.strip() for part in text.split(";") if part.strip()]


UNREDUCED = "broadcast w;" + 3 * "gradient; update;" + "validate;"
STEP = "gradient; all_reduce grad; update;"
PROGRAMS = [
    Program("SGD done right", 3 * STEP),
    Program("a gradient that nobody reduces", UNREDUCED, "error unreduced-read grad"),
    Program(
        "the gradient of the whole batch, in the master only",
        2 * "gradient; reduce grad; update;",
        "error reduced-on-master-only grad",
    ),
    Program("averaged every third step", 2 * (3 * "local step;" + "all_reduce w; validate;")),
    Program(
        "validation of a replica before the average",
        2 * "local step; local step; validate; all_reduce w;",
        "warning unreduced-read w",
    ),
    Program("never averaged", "broadcast w;" + 3 * "local step;", "warning replicas-drift w"),
    Program(
        "a step of the master, which is broadcast",
        3 * "gradient; reduce grad; update; broadcast w;",
        "warning reduced-on-master-only grad",
    ),
    Program("a total that is collected", 3 * "count;" + "read total;" + 2 * "count;"),
    Program("a total that nobody collects", 3 * "count;", "warning own-averages total"),
    Program("set on one rank", "set_value w 1; validate;", "error set-on-one-rank w", None, STEP),
    Program("set on all ranks by hand", "set_value w 0; set_value w 1; validate;", size=2),
    Program("data scattered and sliced", "scatter data; sliced; sliced;"),
    Program(
        "data scattered and read as if whole",
        "scatter data; whole; whole;",
        "warning scattered-read data",
    ),
    Program(
        "data that is also updated, without a call",
        "",
        "warning sliceable-updated data",
        uncalled="sliced; normalize",
    ),
    Program("one rank makes no mistakes", 3 * "gradient; update;", size=1),
    Program(
        "the documented training program",
        "broadcast w;"
        + 2 * (2 * "gradient; all_reduce grad; momentum;" + "validate;")
        + "get_value w; some_new_kind w;",
    ),
]


def events_of(program):
    ids = {f.name: f.function_id for f in program.functions}
    events = []
    for statement in parts(program.text):
        if statement in ids:
            events.append(Event("call", ids[statement]))
            continue
        kind, variable, *rank = statement.split()
        number = (NUMBERS[variable],)
        events.append(Event(kind, None, number, int(rank[0]) if rank else None))
    return events


def test_programs():
    for program in PROGRAMS:
        events = events_of(program)
        findings = lint(program.functions, events, NAMES, program.size)
        found = [f"{f.severity} {f.rule} {NAMES[f.variables[0]]}" for f in findings]
        assert sorted(found) == sorted(parts(program.says)), (program.what, findings)
        ids = {f.function_id: f.name for f in program.functions}
        for finding in findings:
            # Each message names the variable, and every function concerned.
            assert repr(NAMES[finding.variables[0]]) in finding.message
            assert finding.functions
            assert all(ids[number] in finding.message for number in finding.functions)


def test_what_is_multiplied_by_zero_counts_for_its_default_update_only():
    """Lasagne's batch normalization has its running averages in the graph that way."""
    w, mean = (engine.shared(np.ones(3), name=name) for name in ("w", "mean"))
    mean.default_update = 0.9 * mean + 0.1 * x.mean(axis=0)
    output = T.sum(w * (x - x.mean(axis=0) + 0 * mean))
    spec = make_spec([x], output, updates=[(w, T.grad(output, w))])
    found = facts_of(spec, lambda variable: ["w", "mean"].index(variable.name), 7)
    assert found.reads == {0, 1}
    assert found.rank_dependent_updates == {0, 1}
    assert found.sources == {0: {0}, 1: {1}}
