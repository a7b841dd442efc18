"""What every test here ends with: no process, no shared memory left, and no endless wait."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

# Modules of the tests' own, whose names begin with "_", are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

from _checkout import OF_THEANO, PACKAGES, ROOT
from _wheels import build, make_environment

from synk_shm.testing import no_segments_left
from synk_testing import descendants, hard_limit, is_there
from synk_testing.processes import described, kill

LIMIT_S = 300
GRACE_S = 120  # what others leave of killed programs goes when their next one begins


def _children() -> dict[int, str]:
    """Return the command lines of all that this process has started and that holds anything."""
    found = described(pid for pid in descendants(os.getpid()) if is_there(pid))
    # multiprocessing's own helper stays for the life of the process that used it
    return {pid: line for pid, line in found.items() if "resource_tracker" not in line}


# A test that takes longer fails; if even that does not stop it, the whole run ends.
_limit = hard_limit(LIMIT_S, last_resort=True)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = _children()
    with no_segments_left(GRACE_S):
        yield
        deadline = time.monotonic() + GRACE_S
        while children := {pid: line for pid, line in _children().items() if pid not in before}:
            if time.monotonic() > deadline:
                kill(children)
                pytest.fail(f"left behind: processes {children}")
            time.sleep(0.1)


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
