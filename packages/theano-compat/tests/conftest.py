"""Every test runs Theano in a fresh process, started as an installed environment would start it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest

import synk_testing
import synk_theano_compat
from synk_testing import Program, Zygote
from synk_theano_compat._toolchain.cache import PLAIN_PATH

SITE = Path(synk_theano_compat.__file__).parent.parent
TIMEOUT_S = 400

Run = Callable[..., "subprocess.CompletedProcess[str]"]

BY_DAY = {
    "test_blas.py": {
        *("test_folder_is_private_and_found_again", "test_next_candidate_is_taken"),
        *("test_without_compiler_nothing_is_linked", "test_find_compiler"),
    },
    "test_contexts.py": {
        "test_copies_between_devices_wait_for_their_source",
        "test_the_second_cuda_context_has_all_mended",
    },
    "test_convolutions.py": {"test_cudnn_is_given_the_whole_address_of_the_stream"},
    "test_cuda_links.py": {
        "test_a_library_is_found_by_its_other_name",
        "test_what_is_newer_than_the_driver_is_not_taken",
    },
    "test_cudnn.py": {
        *("test_version_of_a_header", "test_our_own_header_is_none_that_is_installed"),
        *("test_versions_as_cudnn_counts_them", "test_library_and_header_are_of_one_version"),
        *("test_patches_are_applied_where_there_is_no_gpu", "test_compute_capability"),
        *("test_recurrent_networks_are_refused_with_a_cure",),
    },
    "test_cudnn_header.py": {"test_the_first_that_works_within_the_limit"},
    "test_locks.py": {
        "test_worker_leaves_cleaning_to_others",
        "test_the_lock_is_released_when_something_fails_under_it",
    },
}
"""What runs by day of files whose other tests are nightly: a case of each kind."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as nightly that `BY_DAY` leaves out."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            chosen = BY_DAY.get(item.path.name)
            if chosen is not None and getattr(item, "originalname", "") not in chosen:
                item.add_marker(pytest.mark.nightly)


def environment(changes: Optional[dict[str, str]] = None) -> dict[str, Optional[str]]:
    """Return ``changes``, and None for what a user may have set; the file of all tests stays."""
    prefixes = ("THEANO", "SYNK_THEANO_COMPAT", "PYTHON")
    without = {name: None for name in os.environ if name.startswith(prefixes)}
    return {**without, "THEANORC": os.environ["THEANORC"], **(changes or {})}


def at_site(code: str) -> str:
    """Return code that reads the .pth as site-packages are read, then does as ``code``."""
    return f"import site; site.addsitedir({str(SITE)!r})\n{code}"


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder whose path has nothing at which Theano would split it."""
    if PLAIN_PATH.fullmatch(str(tmp_path)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def build_library() -> Callable[..., None]:
    """Compile C++ code to a shared library at a path."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler (g++)")

    def build(source: str, path: Path, *options: object) -> None:
        file = path.with_name("source.cpp")
        file.write_text(source)
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, file]
        subprocess.run([*map(str, [*command, *options])], check=True, timeout=TIMEOUT_S)
        file.unlink()

    return build


@pytest.fixture
def run() -> Run:
    """Run code in a fresh process; its output must show no traceback unless ``fails``."""

    def run_code(
        code: str,
        *,
        env: Optional[dict[str, str]] = None,
        skip: str = "",
        flags: str = "",
        options: tuple[str, ...] = (),
        fails: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        changes = dict(env or {})
        if skip:
            changes["SYNK_THEANO_COMPAT_SKIP"] = skip
        if flags:
            changes["THEANO_FLAGS"] = flags
        how = {"environment": environment(changes), "limit_s": TIMEOUT_S}
        done = synk_testing.run(at_site(code), options=options, **how)
        assert (done.status != 0) == fails, f"{done.out}\n{done.err}"
        return subprocess.CompletedProcess([code], *done)

    return run_code


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A process that has imported Theano, started as `run` starts programs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            if value is None:
                patch.delenv(name)
        warm = Zygote(at_site("import theano.tensor"))
    with warm:
        yield warm


@pytest.fixture
def forked(zygote: Zygote) -> Run:
    """Run code as `run` does, but in a process forked from one that has imported Theano."""

    def run_code(code: str) -> subprocess.CompletedProcess[str]:
        done = zygote.run(code, environment=environment(), limit_s=TIMEOUT_S)
        assert done.status == 0, f"{done.out}\n{done.err}"
        return subprocess.CompletedProcess([code], *done)

    return run_code


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with Theano's own modules, which it builds when it is imported."""
    folder = tmp_path_factory.mktemp("imported")
    how = environment({"THEANO_FLAGS": f"base_compiledir={folder}"})
    done = synk_testing.run(at_site("import theano"), environment=how, limit_s=TIMEOUT_S)
    assert done.status == 0, f"{done.out}\n{done.err}"
    return folder


@pytest.fixture
def cold(imported: Path, tmp_path: Path) -> str:
    """Flags for a cache of this test's own, with Theano's own modules alone."""
    return f"base_compiledir={shutil.copytree(imported, tmp_path / 'cache')}"


@pytest.fixture
def spawn() -> Iterator[Callable[..., Program]]:
    """Start code in a fresh process; whatever still runs at the end is killed."""
    with contextlib.ExitStack() as started:

        def spawn_code(
            code: str, *, env: Optional[dict[str, str]] = None, flags: str = ""
        ) -> Program:
            changes = {**(env or {}), **({"THEANO_FLAGS": flags} if flags else {})}
            how = {"environment": environment(changes), "limit_s": TIMEOUT_S}
            return started.enter_context(Program(at_site(code), **how))

        yield spawn_code
