"""The site builds without a warning, its reference is whole, and no link leads nowhere."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import urlsplit

import pytest
from _checkout import ROOT, ran

LIMIT_S = 240
MODULES = [
    *("synk_shm", "synk_shm.exceptions", "synk_shm.testing"),
    *("synk_comm", "synk_comm.exceptions", "synk_comm.testing"),
    *("synk_core", "synk_core.exceptions", "synk_core.in_graph", "synk_core.mpi"),
    *("synk_theano", "synk_theano_compat.locks"),
    *("synkhronos", "synkhronos.exceptions", "synkhronos.in_graph"),
]
EXTENSIONS = ROOT / "packages/synk-extensions/src/synkhronos/extensions"
MODULES += sorted(
    f"synkhronos.extensions.{path.stem}"
    for path in EXTENSIONS.iterdir()
    if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
)
ERRORS = [name for name in MODULES if name.endswith((".exceptions", ".train"))]
LINK = re.compile(r"(!?)\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)


@pytest.mark.nightly
def test_every_public_name_is_in_the_reference(tmp_path: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m sphinx -W --keep-going -b html docs docs/_build/html" in makefile
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", tmp_path]
    done = ran(sys.executable, *command, cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    inventory = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="")
    kinds = [names for kind, names in inventory.data.items() if kind.startswith("py:")]
    documented = {name for names in kinds for name in names}
    known = {id(thing) for name in documented for thing in _resolved(name)}
    missing = []
    for module in MODULES:
        if module.endswith((".nn", ".pymc")) and sys.version_info < (3, 12):
            continue  # PyTensor and PyMC are in no environment that has Theano
        imported = importlib.import_module(module)
        names = _public(imported)
        assert names, f"{module} has no public names"
        missing += [
            f"{module}.{name}"
            for name in names
            if f"{module}.{name}" not in documented and id(getattr(imported, name)) not in known
        ]
    assert missing == []


def _resolved(name: str) -> Iterator[Any]:
    """Yield the class, function or module with this full name: what can be compared by identity."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part, None)
        if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
            yield thing
        return


def test_every_error_is_in_troubleshooting() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    named = {
        name
        for module in map(importlib.import_module, ERRORS)
        for name in _public(module)
        if _is_error(getattr(module, name))
    }
    assert len(ERRORS) == 5
    assert explained == named


def _public(module: Any) -> list[str]:
    """Return the public names of a module; modules of errors have nothing else."""
    return getattr(module, "__all__", None) or [
        n for n, it in vars(module).items() if _is_error(it)
    ]


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def _pages() -> list[Path]:
    places = ["*.md", "docs/**/*.md", "examples/**/*.md", "integration/**/*.md", "dev/*/*.md"]
    places += ["packages/*/*.md", "packages/*/[a-z]*/**/*.md", "benchmarks/*.md"]
    found = {path.resolve() for place in places for path in ROOT.glob(place)}
    return sorted(path for path in found if "_build" not in path.parts)


def _unfenced(page: Path) -> str:
    """Return the page without what stands in fences."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^( *)(`{3,}).*?^\1\2\s*$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_links_lead_somewhere() -> None:
    broken = {str(page.relative_to(ROOT)): _broken(page) for page in _pages()}
    assert {page: links for page, links in broken.items() if links} == {}


def _broken(page: Path) -> list[str]:
    broken = []
    prose = re.sub(r"(`+)(?:(?!\1).)+?\1(?!`)", "`code`", _unfenced(page))
    for picture, link in LINK.findall(prose):
        parts = urlsplit(link)
        if parts.scheme:
            if parts.scheme not in ("http", "https", "mailto") or not (parts.netloc or parts.path):
                broken.append(link)
            continue
        target = page.parent / parts.path if parts.path else page
        if not target.exists():
            broken.append(link)
        elif parts.fragment and not picture and target.suffix == ".md":
            if parts.fragment not in _anchors(target):
                broken.append(link)
    return broken


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    anchors: set[str] = set()
    for title in HEADING.findall(_unfenced(page)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        count = sum(anchor == known or known.startswith(f"{anchor}-") for known in anchors)
        anchors.add(f"{anchor}-{count}" if anchor in anchors else anchor)
    return anchors
