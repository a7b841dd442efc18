"""The rules that keep the packages apart and readable, checked on the syntax trees."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Iterator

import pytest
from _checkout import PACKAGES as FOLDERS
from _checkout import ROOT, project, ran
from packaging.requirements import Requirement

MODULES = {
    "synk_shm": ROOT / "packages/synk-shm/src/synk_shm",
    "synk_comm": ROOT / "packages/synk-comm/src/synk_comm",
    "synk_core": ROOT / "packages/synk-core/src/synk_core",
    "synk_theano": ROOT / "packages/synk-theano/src/synk_theano",
    "synk_theano_compat": ROOT / "packages/theano-compat/src/synk_theano_compat",
    "synk_pytensor": ROOT / "packages/synk-pytensor/src/synk_pytensor",
    "synkhronos": ROOT / "packages/synk-extensions/src/synkhronos",
    "synkhronos_cli": ROOT / "packages/synk-extensions/src/synkhronos_cli",
}
ADAPTERS = {"synk_theano", "synk_theano_compat", "synk_pytensor"}
ABOVE_ENGINES = {"synkhronos", "lasagne", "pymc"}
FORBIDDEN = {
    "synk_shm": {"synk_comm", "synk_core", *ADAPTERS, *ABOVE_ENGINES, "zmq"},
    "synk_comm": {"synk_shm", "synk_core", *ADAPTERS, *ABOVE_ENGINES},
    "synk_core": {*ADAPTERS, *ABOVE_ENGINES},
    "synk_theano": {"synk_pytensor", "pytensor", *ABOVE_ENGINES},
    "synk_theano_compat": {"synk_shm", "synk_comm", "synk_core", "synk_theano", *ABOVE_ENGINES},
    "synk_pytensor": {"synk_theano", "synk_theano_compat", "theano", "pygpu", *ABOVE_ENGINES},
    "synkhronos": set(),
    # It reports what is wrong on machines where these cannot be imported.
    "synkhronos_cli": {"synk_core", *ADAPTERS, "synkhronos", "numpy"},
}
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
# Modules whose distribution has another name.
DISTRIBUTIONS = {"sklearn": "scikit_learn", "zmq": "pyzmq", "synk_theano_compat": "theano_compat"}
# pygpu comes from the system: no Python index has it. Numba is PyTensor's, the optimizer PyMC's.
# JAX is optional: only code that its linker calls imports it.
BROUGHT_ALONG = {"pygpu", "numba", "better_optimize", "jax"}
# What a package has through a sibling that alone decides on the versions.
THROUGH_SIBLINGS = {"synk-extensions": {"numpy", "theano", "pytensor"}}
LONGEST = 500
LARGEST_ROOM = 15
MOST_METHODS = 20
MOST_NOUNS = 15
# A file's folder says where and when its code runs. Each imports only what stands before it.
ROOMS = {
    "synk_comm": (
        *("exceptions", "cuda", "_system", "processes", "_core", "abc", "_collectives"),
        *("_backends", "_join", "_processes", "run", "testing"),
    ),
    "synk_shm": ("exceptions", "_segments", "_processes", "_arrays", "testing"),
    "synk_core": (
        *(
            "exceptions",
            "files",
            "_adapters",
            "_shield",
            "_text",
            "_tracebacks",
            "_warn",
        ),
        *("_weakqueue", "device", "engine", "_plan", "_wire", "_graph", "adapting"),
        *("_rank", "_workers", "mpi", "_master", "_features", "_api"),
    ),
    "synk_theano_compat": ("_toolchain", "_cuda", "cuda", "locks", "_patches", "_hook", "_status"),
    "synkhronos_cli": ("_terminal", "_probe", "_report", "_doctor", "_programs", "_app"),
    "synkhronos": (
        *("exceptions", "_default", "_progress", "_api", "_collective_api", "in_graph"),
        *("data_module", "function_module", "engine", "extensions"),
    ),
}
# Only the packages that adapt one import an engine, or know its GPUs.
ENGINES = {"theano", "pytensor", "pygpu"}
# What is for one of them alone.
OF_ONE_ENGINE = (
    "synkhronos/extensions/lasagne.py",
    "synkhronos/extensions/nn/",
    "synkhronos/extensions/pymc.py",
)


def files() -> list[tuple[str, Path]]:
    return [(name, path) for name, top in MODULES.items() for path in sorted(top.rglob("*.py"))]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@functools.cache
def statements(path: Path, for_types: bool = True) -> list[ast.AST]:
    """Return what a file imports, also `for_types` alone, what it calls and defines as classes."""
    found = []
    below: list[ast.AST] = [tree(path)]
    while below:
        node = below.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call, ast.ClassDef)):
            found.append(node)
        if isinstance(node, ast.If) and not for_types and "TYPE_CHECKING" in ast.dump(node.test):
            below.extend(node.orelse)
        else:
            below.extend(ast.iter_child_nodes(node))
    return found


def imports(path: Path, for_types: bool = True) -> Iterator[tuple[int, str]]:
    """Yield each imported top-level name with its line; relative imports stay in the package."""
    for node in statements(path, for_types):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            first = node.args[0]
            if (
                name in {"import_module", "__import__"}
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
                and not first.value.startswith(".")
            ):
                yield node.lineno, first.value.split(".")[0]


def tracked() -> list[Path]:
    listed = ran("git", "ls-files", "-z", cwd=ROOT)
    if listed.returncode != 0:  # an unpacked archive: everything in it counts
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    names = listed.stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.stdlib_module_names is new in 3.10")
def test_the_helper_of_the_tests_needs_nothing_and_is_needed_by_nothing_released() -> None:
    top = ROOT / "dev/synk-testing/src/synk_testing"
    found = {name for path in top.glob("*.py") for _, name in imports(path)}
    assert found - {"pytest"} <= {*sys.stdlib_module_names, "__future__"}
    released = {name for _, path in files() for _, name in imports(path)}
    assert "synk_testing" not in released


def test_every_package_is_here() -> None:
    assert [path.name for path in PACKAGES] == sorted(FOLDERS)
    for name, top in MODULES.items():
        assert (top / "__init__.py").is_file(), name
        assert (top / "py.typed").is_file(), f"{name} publishes no types"


def test_imports_point_down_and_only_adapters_know_engines() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for name, path in files()
        for line, imported in imports(path)
        if imported in FORBIDDEN[name] | (set() if may_know_engines(name, path) else ENGINES)
    ]
    assert wrong == []


def test_the_core_names_no_engine() -> None:
    named = re.compile(r"\b(theano|pytensor|pygpu)\b")
    wrong = []
    for path in sorted(MODULES["synk_core"].rglob("*.py")):
        nodes = list(ast.walk(tree(path)))
        documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
            for node in nodes
            if isinstance(node, ast.Constant) and id(node) not in documented
            if isinstance(node.value, str) and named.search(node.value)
        ]
    assert wrong == []


@pytest.mark.parametrize("adapter", ["synk_theano", "synk_pytensor"])
def test_each_adapter_defines_all_names(adapter: str) -> None:
    """One that it lacks would be missed only where this engine is."""
    defined: set[str] = set()
    for node in tree(MODULES[adapter] / "_engine.py").body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            defined.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
    assert set(names_listed_in(MODULES["synk_core"] / "engine.py")) - defined == set()


def may_know_engines(package: str, path: Path) -> bool:
    place = path.relative_to(MODULES[package].parent).as_posix()
    return package in ADAPTERS or place.startswith(OF_ONE_ENGINE)


def test_packages_use_only_the_public_names_of_the_others() -> None:
    wrong = []
    for name, path in files():
        for node in statements(path):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            first, *rest = node.module.split(".")
            foreign = first in MODULES and first != name
            private = any(part.startswith("_") for part in rest) or any(
                alias.name.startswith("_") and not alias.name.startswith("__")
                for alias in node.names
            )
            if foreign and private:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} from {node.module}")
    assert wrong == []


def imported_files(package: str, path: Path) -> Iterator[tuple[int, Path]]:
    """Yield the files of its own package from which a file imports, also for types alone."""
    top = MODULES[package].parent
    folder = path.relative_to(top).parent.parts
    for node in statements(path):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = folder[: len(folder) - node.level + 1] if node.level else ()
        place = top.joinpath(*base, *(node.module.split(".") if node.module else []))
        if place.relative_to(top).parts[:1] != (package,):
            continue
        for alias in node.names:
            name = place / alias.name
            for found in (name.with_suffix(".py"), name / "__init__.py", place.with_suffix(".py")):
                if found.is_file():
                    yield node.lineno, found
                    break
            else:
                yield node.lineno, place / "__init__.py"


def room_of(package: str, path: Path) -> str:
    """Return the top-level file or folder of a package that has a file."""
    return path.relative_to(MODULES[package]).with_suffix("").parts[0]


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_those_below(package: str) -> None:
    order = {room: place for place, room in enumerate(ROOMS[package])}
    wrong = []
    for path in MODULES[package].rglob("*.py"):
        here = order.get(room_of(package, path))
        if here is not None:
            wrong += [
                f"{path.relative_to(ROOT)}:{line} imports {found.relative_to(MODULES[package])}"
                for line, found in imported_files(package, path)
                if order.get(room_of(package, found), here) > here
            ]
    rooms = {path.name for path in MODULES[package].iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= set(order)
    assert wrong == []


@pytest.mark.parametrize("package", MODULES)
def test_no_imports_form_a_circle(package: str) -> None:
    """Neither through others, nor for types alone. What leads back to a package's front does not
    count: it has been imported before any file behind it."""
    graph = {
        path: {
            found
            for _, found in imported_files(package, path)
            if found.name != "__init__.py" and found != path
        }
        for path in MODULES[package].rglob("*.py")
        if path.name != "__init__.py"
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = [path.relative_to(MODULES[package]).as_posix() for path in error.args[1]]
        pytest.fail(" -> ".join(circle))


def test_the_glossary_is_short_and_its_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("| noun | meaning |\n|---|---|\n")[1].split("\n\n")[0]
    nouns = [row.split("|")[1].strip() for row in table.splitlines()]
    assert 8 <= len(nouns) <= MOST_NOUNS
    named = set(re.findall(r"`([A-Z]\w+)`", table))
    defined = {
        node.name
        for _, path in files()
        for node in statements(path)
        if isinstance(node, ast.ClassDef)
    }
    assert named <= defined


# Class names that stand twice, and why.
TWICE: dict[str, str] = {}


def test_no_class_name_stands_twice() -> None:
    found: dict[str, list[str]] = {}
    for _, path in files():
        for node in statements(path):
            if isinstance(node, ast.ClassDef):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                found.setdefault(node.name.lstrip("_"), []).append(place)
    assert {n: places for n, places in found.items() if len(places) > 1 and n not in TWICE} == {}


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_is_a_corridor(package: str) -> None:
    folders = {path.parent for name, path in files() if name == package}
    sizes = {str(f.relative_to(ROOT)): len(list(f.glob("*.py"))) for f in folders}
    assert {folder: n for folder, n in sizes.items() if n > LARGEST_ROOM} == {}


# In texts that are maps: `_rank/call.py`, `_rank.call`, `synk_shm/_arrays/handle.py`, `abc.py`.
POINTER = re.compile(r"`((?:synk\w+/)?[\w/]+\.py|_[a-z]\w*(?:\.[a-z]\w*)+)[`.(]")


def maps() -> list[Path]:
    found = [path for top in MODULES.values() for path in sorted(top.rglob("README.md"))]
    return [ROOT / "ARCHITECTURE.md", *found]


@pytest.mark.parametrize("text", maps(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pointers_in_maps_lead_to_files(text: Path) -> None:
    tops = [ROOT, *MODULES.values(), *(top.parent for top in MODULES.values())]
    every = {path.name for _, path in files()}

    def leads(pointer: str) -> bool:
        if pointer.endswith(".py"):
            return pointer in every or any((top / pointer).is_file() for top in tops)
        first, second, *_ = pointer.split(".")  # what follows may be a name in the file
        return any(
            (top / first / f"{second}.py").is_file() or (top / first / second).is_dir()
            for top in tops
        )

    lost = [p for p in POINTER.findall(text.read_text(encoding="utf-8")) if not leads(p)]
    assert lost == []


def test_source_files_stay_short() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for _, path in files()}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > LONGEST} == {}


def test_a_class_of_many_methods_says_why() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for _, path in files()
        for node in statements(path)
        if isinstance(node, ast.ClassDef)
        and sum(isinstance(one, functions) for one in node.body) > MOST_METHODS
        and "method" not in (ast.get_docstring(node) or "")
    ]
    assert long == []


def test_files_are_private_unless_they_are_the_documented_exceptions() -> None:
    public = {"__init__", "__main__", "exceptions", "testing", "abc", "locks", "run", "cuda"}
    public |= {"in_graph", "files", "mpi", "engine", "device", "adapting", "processes"}
    wrong = [
        str(path.relative_to(ROOT))
        for name, path in files()
        if name != "synkhronos"  # its extensions and cli keep the import paths of 1.0
        and path.stem not in public
        and not any(part.startswith("_") for part in path.relative_to(MODULES[name]).parts)
        and "testing" not in path.parts
    ]
    assert wrong == []


def names_listed_in(path: Path) -> list[str]:
    listed = [
        node.value
        for node in tree(path).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in getattr(node, "targets", None) or [node.target]
        if isinstance(target, ast.Name) and target.id == "__all__"
    ]
    assert len(listed) == 1, f"{path} has to define __all__ once"
    names: list[str] = ast.literal_eval(listed[0])
    return names


# The compatibility layer is imported at every start of Python, so it imports and offers nothing.
# The names of adapters are synk-core's.
@pytest.mark.parametrize("name", sorted(set(MODULES) - ADAPTERS))
def test_public_names_are_listed_and_exist(name: str) -> None:
    names = names_listed_in(MODULES[name] / "__init__.py")
    assert len(names) == len(set(names))
    imported = __import__(name)
    assert [public for public in names if not hasattr(imported, public)] == []


@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.stdlib_module_names is new in 3.10")
@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_each_package_declares_its_imports(package: Path) -> None:
    described = project(package.name)
    texts = list(described["dependencies"])
    for extra in described.get("optional-dependencies", {}).values():
        texts += extra
    declared = {Requirement(text).name.lower().replace("-", "_") for text in texts}
    declared |= THROUGH_SIBLINGS.get(package.name, set()) | BROUGHT_ALONG
    own = {path.name for path in (package / "src").iterdir()}
    # Programs import the files beside them.
    own |= {path.stem for path in (package / "src/synkhronos_examples").rglob("*.py")}
    missing = {
        f"{path.relative_to(package)}:{line} imports {imported}"
        for path in (package / "src").rglob("*.py")
        for line, imported in imports(path, for_types=False)
        if imported not in sys.stdlib_module_names
        and imported not in own
        and DISTRIBUTIONS.get(imported, imported).lower() not in declared
    }
    assert missing == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_each_package_can_stand_alone(package: Path) -> None:
    for needed in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"):
        assert (package / needed).is_file(), needed
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "```python" in (package / "README.md").read_text(), "a runnable first example"
    assert list((package / "tests").glob("test_*.py")), "tests of its own"


def test_files_name_no_machine_and_no_registry() -> None:
    # The patterns are put together here, so that this file does not match itself.
    homes = r"/(?:home|Users)/[a-z][\w.-]*/|/" + r"root/(?!\.\.)"
    registries = r"(?:pypi|files)\.python" + r"hosted\.org|pypi\." + r"org/simple|index" + "-url"
    pattern = re.compile(f"{homes}|{registries}")
    wrong = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # data
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert wrong == []


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.mark.usefixtures("scripts")
def test_suites_name_existing_files() -> None:
    import run_tests

    named = [path for suite in run_tests.SUITES for path in (*suite.paths, *suite.without)]
    for path in named + list(run_tests.SMOKE):
        file, _, test = path.partition("[")[0].partition("::")
        assert (ROOT / file).exists(), path
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), path


@pytest.mark.usefixtures("scripts")
def test_every_fault_can_be_planted_and_each_package_has_ten() -> None:
    """Those of the packages that adapt an engine count as the core's, which calls them."""
    from _planted_faults import FAULTS, KINDS

    for fault in FAULTS:
        text = (ROOT / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.name} no longer applies to {fault.file}"
        ast.parse(text.replace(fault.old, fault.new))
        assert fault.kind in KINDS
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), f"{fault.name}: {test} is not there"
            assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    adapters = dict.fromkeys(("synk-theano", "theano-compat", "synk-pytensor"), "synk-core")
    counts = Counter(adapters.get(fault.package, fault.package) for fault in FAULTS)
    assert set(counts) == {path.name for path in PACKAGES} - set(adapters)
    assert min(counts.values()) >= 10
