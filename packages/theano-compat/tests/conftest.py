"""Every test runs Theano in a fresh process, started as an installed environment would start it."""

from __future__ import annotations

import contextlib
import functools
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

BY_NIGHT = ["blas", "contexts", "convolutions", "cuda_links", "cudnn", "locks"]
"""Files whose tests are nightly, but for a case of each kind:"""
BY_DAY = """
test_copies_between_devices_wait_for_their_source test_the_second_cuda_context_is_mended
test_a_library_is_found_by_its_other_name test_a_library_newer_than_the_driver_is_not_taken
test_version_of_a_header test_versions_as_cudnn_counts_them test_compute_capability
test_library_and_header_are_of_one_version test_patches_are_applied_where_there_is_no_gpu
test_cudnn_is_given_the_whole_address_of_the_stream test_find_compiler test_next_candidate_is_taken
test_recurrent_networks_are_refused_with_a_cure test_folder_is_private_and_found_again
test_worker_leaves_cleaning_to_others test_the_lock_is_released_when_something_fails
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_day = BY_DAY.split()
    files = [Path(__file__).with_name(f"test_{name}.py") for name in BY_NIGHT]
    for item in items:
        if item.path in files and getattr(item, "originalname", "") not in by_day:
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
def build() -> Callable[..., None]:
    """Compile C++ code to a program, or to a library if the name is one's."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler (g++)")

    def compile_to(path: Path, source: str, *options: object) -> None:
        file = path.with_name("source.cpp")
        file.write_text(source)
        command = [compiler, "-o", str(path), str(file), *map(str, options)]
        if ".so" in path.name:
            command += ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
        file.unlink()

    return compile_to


@pytest.fixture
def numbers(build: Callable[..., None], tmp_path: Path) -> Callable[..., list[tuple[int, ...]]]:
    """Compile and run a C++ program; return the numbers that it prints, by lines."""

    def printed(source: str, *options: object) -> list[tuple[int, ...]]:
        program = tmp_path / "program"
        build(program, source, "-std=c++11", *options)
        out = subprocess.check_output([program], text=True, timeout=20)
        return [tuple(map(int, line.split())) for line in out.splitlines()]

    return printed


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
        zygote: Optional[Zygote] = None,
        fails: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        changes = dict(env or {})
        if skip:
            changes["SYNK_THEANO_COMPAT_SKIP"] = skip
        if flags:
            changes["THEANO_FLAGS"] = flags
        how = {"environment": environment(changes), "limit_s": TIMEOUT_S, "zygote": zygote}
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
def forked(run: Run, zygote: Zygote) -> Run:
    """Run code as `run` does, but in a process forked from one that has imported Theano."""
    return functools.partial(run, zygote=zygote)


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
