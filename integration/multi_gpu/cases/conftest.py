"""One `fork()` on the device set of this process, for all cases; anew after one that failed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest
from _sets import SETS

sys.path.insert(0, str(Path(__file__).parent))

CLOSING_LIMIT_S = 60


class Forks:
    """Forks when it is first asked, and again after a failure: it may have closed the runtime."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._is_open = False
        self.failed = False

    def ready(self) -> Any:
        # In this order, as the documented programs have it.
        import theano  # noqa: F401

        import synkhronos as synk

        if self.failed:
            self.close()
        if not self._is_open:
            synk.fork(**self._arguments, verbose=False)
            self._is_open = True
        return synk

    def close(self) -> None:
        self.failed = False
        if not self._is_open:
            return
        self._is_open = False
        import synkhronos as synk

        timer = threading.Timer(CLOSING_LIMIT_S, os._exit, (71,))
        timer.daemon = True
        timer.start()
        synk.close()
        timer.cancel()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    outcome = yield
    if outcome.get_result().failed:
        item.session.stash[FAILED] = True


@pytest.fixture(scope="session")
def forks(device_set: Any) -> Iterator[Forks]:
    opened = Forks(device_set.fork_arguments)
    yield opened
    opened.close()


@pytest.fixture
def synk(forks: Forks, request: pytest.FixtureRequest) -> Any:
    stash = request.session.stash
    forks.failed = stash.get(FAILED, False)
    stash[FAILED] = False
    return forks.ready()


@pytest.fixture
def n(device_set: Any) -> int:
    ranks: int = device_set.ranks
    return ranks


def pytest_generate_tests(metafunc: Any) -> None:
    """`place`: where shared variables lie; CPU processes keep all on the host."""
    if "place" in metafunc.fixturenames:
        is_cpu = SETS[os.environ["SYNK_DEVICE_SET"]].kind == "cpu"
        metafunc.parametrize("place", ["host"] if is_cpu else ["device", "host"])
