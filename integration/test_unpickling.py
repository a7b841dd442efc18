"""Each place that unpickles is known: whoever can write what it reads can run anything."""

from __future__ import annotations

import ast
from typing import Iterator

from _checkout import ROOT

INHERITED = "a pipe, a socket pair or memory that only the processes of one run have inherited"
PAYLOAD = "the master's payload, in shared memory of mode 0600"
GROUP = "members of a group: shared memory, or messages marked with the group's token"
MPI = "ranks that the user's own MPI launcher has started"

KNOWN = {
    "synk_comm/processes.py": INHERITED,
    "synk_comm/_processes/crew.py": INHERITED,
    "synk_comm/_processes/rank.py": INHERITED,
    "synk_comm/_core/steps.py": GROUP,
    "synk_core/_master/failures.py": INHERITED,
    "synk_core/_workers/mpi_worker.py": MPI,
    "synk_core/_workers/pool.py": INHERITED,
    "synk_core/_workers/worker.py": INHERITED,
    "synk_core/_rank/rank.py": GROUP,
    "synk_core/_graph/transfer/pickling.py": PAYLOAD,
}

LOADERS = {"load", "loads", "Unpickler"}
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        name = path.relative_to(next(p for p in path.parents if p.name == "src")).as_posix()
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def unpickles(tree: ast.Module) -> bool:
    """Return whether a file reads pickles, or another format of Python that runs code."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] in PICKLES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLES:
            if any(alias.name in LOADERS for alias in node.names):
                return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in names and node.attr in LOADERS:
                return True
    return False


def test_each_place_that_unpickles_is_known():
    found = {name for name, tree in sources() if unpickles(tree)}
    assert len(found) > 5
    assert sorted(found - set(KNOWN)) == [], "who alone can have written what these read?"


def test_numpy_files_are_read_without_pickles():
    seen = 0
    for name, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func).endswith(("np.load", "numpy.load", ".read_array")):
                seen += 1
                allowed = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
                assert allowed.get("allow_pickle") is False, f"{name}:{node.lineno}"
    assert seen
