"""`lint`: what is wrong with a program as a whole; and, as important, what is not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synk_core._graph.facts import Event, FunctionFacts, facts_of
from synk_core._graph.spec import make_spec
from synk_core._watch.findings import Finding
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
    """`text`: calls and collectives; `says`: findings, as severity, rule and variable; `drift`:
    what the program has declared to drift."""

    what: str
    text: str
    says: str = ""
    size: object = None
    uncalled: str = ""
    drift: str = ""

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
    Program("which is declared", 3 * "local step;", drift="w"),
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
        drift = frozenset(NUMBERS[name] for name in program.drift.split())
        events = events_of(program)
        findings = lint(program.functions, events, NAMES, program.size, let_drift=drift)
        found = [f"{f.severity} {f.rule} {NAMES[f.variables[0]]}" for f in findings]
        assert sorted(found) == sorted(parts(program.says)), (program.what, findings)
        ids = {f.function_id: f.name for f in program.functions}
        for finding in findings:
            # Each message names the variable, and every function concerned.
            assert repr(NAMES[finding.variables[0]]) in finding.message
            assert finding.functions
            assert all(ids[number] in finding.message for number in finding.functions)


def test_messages_say_what_to_do():
    program = next(p for p in PROGRAMS if p.text == UNREDUCED)
    (finding,) = lint(program.functions, events_of(program), NAMES)
    assert isinstance(finding, Finding)
    assert str(finding) == (
        "error [unreduced-read]: update reads 'grad', which gradient computed on each rank from "
        "the rank's own rows, and no all_reduce() came between; call all_reduce('grad') after "
        "gradient. Until then 'w' will differ between ranks"
    )


# facts_of


def facts(numbers, *args, **kwargs):
    """Facts by name: a variable's number is its place in `numbers`."""
    spec = make_spec(*args, **kwargs)
    found = facts_of(spec, lambda variable: numbers.index(variable.name), 7)

    def named(chosen):
        return {numbers[n] for n in chosen}

    sources = {numbers[u]: named(read) for u, read in found.sources.items()}
    return found, named(found.reads), named(found.rank_dependent_updates), sources


def shared(*names):
    return [engine.shared(np.ones(3), name=name) for name in names]


def test_facts_of_a_training_step():
    x, y = T.matrix("x"), T.scalar("y")
    w, g, lr, n, _unused = shared("w", "g", "lr", "n", "unused")
    loss = T.tanh(x.dot(w)).mean() * y
    updates = [(g, T.grad(loss, w)), (n, n + 1), (lr, lr * y)]
    found, reads, own, sources = facts(
        ["w", "g", "lr", "n"], [x], loss, bcast_inputs=[y], updates=updates, name="step"
    )
    assert (found.function_id, found.name, found.has_rows) == (7, "step", True)
    assert (reads, own, found.sliceable) == ({"w", "n", "lr"}, {"g"}, frozenset())
    assert sources == {"g": {"w"}, "n": {"n"}, "lr": {"lr"}}
    found, reads, own, sources = facts(["w", "g"], [], updates=[(w, w - g)])
    assert (found.name, found.has_rows) == ("function 7", False)
    assert (reads, own, sources) == ({"w", "g"}, set(), {"w": {"w", "g"}})


def test_what_is_multiplied_by_zero_counts_for_its_default_update_only():
    """Lasagne's batch normalization has its running averages in the graph that way."""
    w, mean = shared("w", "mean")
    mean.default_update = 0.9 * mean + 0.1 * x.mean(axis=0)
    output = T.sum(w * (x - x.mean(axis=0) + 0 * mean))
    _, reads, own, sources = facts(["w", "mean"], [x], output, updates=[(w, T.grad(output, w))])
    assert reads == {"w", "mean"}
    assert own == {"w", "mean"}
    assert sources == {"w": {"w"}, "mean": {"mean"}}
