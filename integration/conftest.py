"""What every test here ends with: no process, no shared memory left, and no endless wait."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

# Modules of the tests' own, whose names begin with "_", are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

from _checkout import OF_THEANO, PACKAGES, ROOT
from _wheels import build, make_environment

from synk_testing import descendants, hard_limit, is_there, shared_memory
from synk_testing.processes import described, kill

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "synk."
LIMIT_S = 300
GRACE_S = 120  # what others leave of killed programs goes when their next one begins


def _segments() -> set[str]:
    """Return the names of our segments in the system's shared memory.

    Lock files hold no memory; whose they are is unknown once their family is dead, and other
    programs of this user leave theirs to the next sweep. synk-shm's own tests look at them.
    """
    names = shared_memory(PREFIX) if SHARED_MEMORY.is_dir() else []
    return {name for name in names if name.startswith(PREFIX) and not name.endswith(".lock")}


def _of_strangers(names: set[str]) -> set[str]:
    """Return those of `names` that belong to a living program which we did not start.

    A program's processes hold the lock file of its family for as long as they live; a segment
    with a name that was given tells no family, but the processes that have mapped it do.
    """
    ours = {os.getpid(), *descendants(os.getpid())}
    families, mapped = set(), set()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in ours:
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            families |= {_family(os.readlink(fd)) for fd in (process / "fd").iterdir()}
        with contextlib.suppress(OSError):
            text = (process / "maps").read_text()
            mapped |= {name for name in names if f"{SHARED_MEMORY}/{name}" in text}
    return mapped | {name for name in names if _family(name) in families - {""}}


def _family(path: str) -> str:
    """Return the family in the name of a segment or a lock file; "" for anything else."""
    match = re.search(r"(?:^|/)synk\.(?:\d+\.)?([0-9a-f]{8})\.(?:lock$|[0-9a-f]{10}$)", path)
    return match.group(1) if match else ""


def _children() -> dict[int, str]:
    """Return the command lines of all that this process has started and that holds anything."""
    found = described(pid for pid in descendants(os.getpid()) if is_there(pid))
    # multiprocessing's own helper stays for the life of the process that used it
    return {pid: line for pid, line in found.items() if "resource_tracker" not in line}


# A test that takes longer fails; if even that does not stop it, the whole run ends.
_limit = hard_limit(LIMIT_S, last_resort=True)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail the test that leaves a child process or a shared memory segment behind."""
    segments_before = _segments()
    children_before = _children()
    yield
    deadline = time.monotonic() + GRACE_S
    while True:
        children = {pid: line for pid, line in _children().items() if pid not in children_before}
        segments = _segments() - segments_before
        segments -= _of_strangers(segments) if segments else set()
        if not children and not segments:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    kill(children)
    pytest.fail(f"left behind: processes {children}, segments {sorted(segments)}")


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with nothing of ours or Theano's in it, and an empty home."""
    home = tmp_path_factory.mktemp("home")
    kept = {
        name: os.environ[name]
        for name in os.environ
        # what pip needs to reach its index and its cache, and what every program needs
        if name in {"PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
        or name.startswith("PIP_")
        or name.lower() in {"http_proxy", "https_proxy", "no_proxy"}
    }
    return {**kept, "HOME": str(home)}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One wheel for each package folder."""
    return build(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the packages, those for Theano among them."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    return make_environment(folder, [wheels[one] for one in PACKAGES if one != "synk-pytensor"])


@pytest.fixture(scope="session")
def newer() -> Path:
    """The interpreter of the environment for PyTensor."""
    python = ROOT / ".venv-newer/bin/python"
    if not python.exists():
        pytest.skip("no Python 3.12 or newer was found when this checkout was prepared")
    return python


@pytest.fixture(scope="session")
def installed_newer(
    wheels: dict[str, Path], newer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The interpreter of a fresh environment with the packages, those for PyTensor among them."""
    folder = tmp_path_factory.mktemp("newer") / "venv"
    chosen = [wheels[one] for one in PACKAGES if one not in OF_THEANO]
    return make_environment(folder, chosen, newer)
