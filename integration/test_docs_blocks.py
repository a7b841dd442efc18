"""What the documentation shows runs, and prints what is shown; see `_run_page.py` for its marks.

`test_examples.py` runs the programs that a page includes; synk-shm and synk-comm run their own.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Iterator

import pytest
from _checkout import PACKAGES, ROOT, project, ran
from _run_page import ENGINE, Block, Page, blocks
from click.testing import CliRunner
from packaging.requirements import Requirement

from synk_testing import Zygote
from synkhronos_cli import _app

LIMIT_S = 240
# Pages whose programs other tests run, and where.
ELSEWHERE = {
    "packages/synk-shm/README.md": "packages/synk-shm/tests/test_examples.py",
    "packages/synk-shm/docs/from_shared_memory.md": "packages/synk-shm/tests/test_examples.py",
    "packages/synk-comm/README.md": "packages/synk-comm/tests/test_pages.py",
    "packages/synk-comm/docs/from_mpi4py.md": "packages/synk-comm/tests/test_pages.py",
    "packages/synk-comm/docs/from_torch_distributed.md": "packages/synk-comm/tests/test_pages.py",
}
# What `make test` runs, by engine; nightly runs and CI run all.
BY_DAY = {
    "Theano": {"README.md", "docs/tutorial.md", "docs/troubleshooting.md", "docs/trust.md"},
    "PyTensor": {"README.md", "docs/installation.md", "packages/synk-pytensor/README.md"},
}[ENGINE]
# Commands of other projects, which are shown and not checked.
FOREIGN = {
    ".", "apt", "cat", "cd", "cp", "deactivate", "df", "docker", "echo", "export", "git", "jupyter",
    "kill", "ls", "nvidia-smi", "pgrep", "ps", "py-spy", "python3.11", "rm", "sbatch", "source",
    "srun", "ssh", "sudo", "taskset", "theano-cache", "timeout", "ulimit",
}  # fmt: skip


def _pages() -> dict[str, list[Block]]:
    places = ["*.md", "docs/**/*.md", "examples/**/*.md", "packages/*/*.md", "benchmarks/*.md"]
    places += ["packages/*/docs/*.md", "packages/*/benchmarks/**/*.md", "packages/*/src/**/*.md"]
    found = sorted({path for place in places for path in ROOT.glob(place)})
    names = {path.resolve().relative_to(ROOT).as_posix(): path for path in found}
    parts = {name: set(name.split("/")) for name in names}
    return {
        name: list(blocks(path.read_text(encoding="utf-8")))
        for name, path in names.items()
        if not parts[name] & {"_build", ".venv", "CHANGELOG.md"}
    }


PAGES = _pages()
PROGRAMS = {
    name: [block for block in found if block.kind in ("python", "setup")]
    for name, found in PAGES.items()
}
RUN = [
    name
    for name, found in PROGRAMS.items()
    if name not in ELSEWHERE and any(block.runs for block in found)
]
SHELL = [
    (f"{name}:{block.line}", block)
    for name, found in PAGES.items()
    for block in found
    if block.kind in ("console", "bash", "sh")
]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """A process that has imported what pages import, to fork the readers of pages from."""
    modules, lines = {
        "Theano": ("lasagne, theano.tensor", "theano.config.traceback.limit = 8"),
        "PyTensor": ("pytensor.tensor", "pytensor.config.traceback__limit = 8"),
    }[ENGINE]  # reports name lines, as they do for readers
    with Zygote(f"import synkhronos.extensions.train, {modules}\n{lines}") as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in RUN],
)
def test_page_runs(zygote: Zygote, name: str, tmp_path: Path) -> None:
    status, printed, said = zygote.run(
        ROOT / "integration/_run_page.py",
        ROOT / name,
        folder=tmp_path,
        environment={"SYNKHRONOS_N_PARALLEL": "2"},
        limit_s=LIMIT_S,
    )
    assert status == 0, f"{printed}\n{said}"
    assert printed.splitlines()[-1] != "0 blocks ran"


CODE = "```python\n{}\n```\n"
WRONG_PAGES = {
    "another number": (CODE.format("print(3)  #-> 4"), AssertionError, "promised 4; got 3"),
    "nothing": (CODE.format("x = 3  #-> 3"), AssertionError, "'3' was promised, and nothing"),
    "another output": (
        CODE.format("print(3)") + "<!-- printed -->\n```text\n4\n```\n",
        AssertionError,
        "shown is\n4\nbut printed was\n3",
    ),
    "another error": ("<!-- raises KeyError -->\n" + CODE.format("[][0]"), IndexError, "range"),
    "no error": ("<!-- raises KeyError -->\n" + CODE.format("3"), AssertionError, "not raise"),
    "no block": ("<!-- printed -->\nIn words.\n", ValueError, "no block follows"),
    "hidden code": ("<!-- setup\n1 / 0\n-->\n", ZeroDivisionError, "division"),
}


def test_pages_that_are_wrong_are_noticed(tmp_path: Path) -> None:
    for name, (text, error, said) in WRONG_PAGES.items():
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        try:
            with pytest.raises(error, match=re.escape(said)):
                Page(tmp_path / "page.md").run()
        except (Exception, pytest.fail.Exception) as failed:
            raise AssertionError(name) from failed


def test_a_block_for_one_engine_runs_with_that_alone(tmp_path: Path) -> None:
    other = "PyTensor" if ENGINE == "Theano" else "Theano"
    shown = "<!-- printed -->\n```text\n{}\n```\n"
    parts = [f"<!-- setup only {other}\n1 / 0\n-->\n"]
    for engine, code, text in ((ENGINE, "print(3)", "3"), (other, "1 / 0", "nothing")):
        parts += [f"<!-- only {engine}: why -->\n", CODE.format(code), shown.format(text)]
    (tmp_path / "page.md").write_text("".join(parts), encoding="utf-8")
    assert Page(tmp_path / "page.md").run() == 1


def test_every_page_with_programs_is_run() -> None:
    assert set(RUN) >= BY_DAY
    for name, test in ELSEWHERE.items():
        assert PROGRAMS[name]
        stem = name.rpartition("/")[2]
        text = (ROOT / test).read_text(encoding="utf-8")
        assert stem in text or f"{stem[:5]}*.md" in text, f"{test} does not read {name}"
    for name in PROGRAMS.keys() - ELSEWHERE:
        for block in (block for block in PROGRAMS[name] if block.mark == "not run"):
            ast.parse(block.text)
            assert block.detail, f"{name}:{block.line} does not say why it is not run"


def test_commands_are_there() -> None:
    for where, block in SHELL:
        try:
            _check_block(block, (ROOT / where.rpartition(":")[0]).parent)
        except (Exception, pytest.fail.Exception) as failed:
            raise AssertionError(where) from failed


def _check_block(block: Block, home: Path) -> None:
    for words in _commands(block):
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] == "sudo"):
            words = words[1:]
        if words[:1] in (["srun"], ["mpiexec"]):  # its options, and then a program
            own = (i for i, word in enumerate(words) if word in {"python", "synkhronos"})
            words = words[next(own) :]
        if words:
            _check(words, home)


def _commands(block: Block) -> list[list[str]]:
    """Return what is typed, as words; in a console it follows a dollar sign."""
    if block.kind in ("bash", "sh"):
        done = ran("bash", "-n", input=block.text)
        assert done.returncode == 0, done.stderr
        return []
    typed = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block.text, re.MULTILINE)
    assert typed, "a console shows what is typed after a dollar sign"
    commands: list[list[str]] = []
    for line in typed:
        words = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars="&|;")
        words.whitespace_split = True
        commands.append([])
        for word in words:
            if set(word) <= set("&|;"):
                commands.append([])
            else:
                commands[-1].append(word)
    return commands


def _check(words: list[str], home: Path) -> None:
    name = words[0].rpartition("/")[2]
    if name == "make":
        targets = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in (word for word in words[1:] if "=" not in word):
            package = re.fullmatch(r"test-(synk-\w+)", target)
            known = re.search(rf"^{re.escape(target)}:", targets, re.MULTILINE)
            assert known or (package and (ROOT / "packages" / package.group(1)).is_dir()), target
    elif name == "synkhronos":
        _check_own(words[1:])
    elif name in ("python", "python3"):
        _check_python(words[1:], home)
    elif name in ("pip", "pip3"):
        _check_pip(words[1:])
    else:
        assert name in FOREIGN, f"{name}: no command of this project, and not listed as another's"


def _check_own(words: list[str]) -> None:
    """Check that a subcommand of `synkhronos`, and its options, are in its help."""
    shown = _help(words[0] if words and words[0].isalpha() else "")
    for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", " ".join(words)):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown), (option, shown)


@functools.cache
def _help(command: str) -> str:
    words, settings = [*command.split(), "--help"], {"COLUMNS": "200", "TERM": "dumb"}
    done = CliRunner().invoke(_app._app, words, env=settings)
    assert done.exit_code == 0, f"synkhronos {command}: {done.output}"
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


def _check_python(words: list[str], home: Path) -> None:
    if words[:1] == ["-m"]:
        theanos = ENGINE == "PyTensor" and words[1].startswith("synk_theano")
        if words[1] not in {"venv", "pip", "pytest"} and not theanos:
            assert importlib.util.find_spec(words[1]), words
    elif words[:1] == ["-c"]:
        ast.parse(words[1])
    elif words and "/" in words[0]:
        assert (ROOT / words[0]).is_file() or (home / words[0]).is_file(), words


def _check_pip(words: list[str]) -> None:
    for word in (word for word in words[1:] if not word.startswith("-")):
        if (ROOT / word).is_file():
            continue  # a list of requirements
        folder, _, extras = word.partition("[")
        if word.startswith("./"):
            package = folder.removeprefix("./packages/")
            wanted = set(filter(None, extras.rstrip("]").split(",")))
        else:
            requirement = Requirement(word)  # raises what pip would not understand
            package = requirement.name.replace("synkhronos", "synk-extensions")
            wanted = requirement.extras
            if package not in PACKAGES:
                continue  # somebody else's
        assert wanted <= set(project(package).get("optional-dependencies", {})), word
