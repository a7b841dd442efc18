"""A copy of a checkout in which faults are planted and tests run, and the end of all that runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Optional

from ._fault import Fault

_MARK = "PLANTED_FAULT_COPY"  # in the environment of all that runs in a copy
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
_NOTHING_TRIED = (4, 5)  # what pytest ends with after wrong usage, or without tests
_PYTEST = ("-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider")
_PROBE = """
import importlib.util, sys
names = ["synk_shm", "synk_comm", "synk_core", "synk_theano", "synk_theano_compat", "synkhronos"]
print(*[importlib.util.find_spec(name).origin for name in names], sep="\\n")
print(sys.modules["synk_theano_compat._hook"].__file__)
"""


class Outcome(NamedTuple):
    """What came of a fault: ``caught``, ``hang``, ``MISSED``, or ``error`` if it was not tried."""

    name: str
    verdict: str
    by: str
    seconds: float


class Copy:
    """A copy of the checkout in ``root``; ``folder`` is made for it."""

    def __init__(self, root: Path, folder: Path, limit_s: float) -> None:
        self._folder, self._limit_s = folder, limit_s
        for path in _files(root):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, folder / path, follow_symlinks=False)
        (folder / "t").mkdir()
        environment = folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        self._python = environment / "bin" / "python"
        # First the copy's packages, then all that is installed, the checkout's own among it.
        lines = sorted(map(str, folder.glob("packages/*/src")))
        lines.append(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
        site = next(environment.glob("lib/python*/site-packages"))
        (site / "copy.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        status, found = self._run("-c", _PROBE)
        if status or not all(line.startswith(f"{folder}/") for line in found.splitlines()):
            raise RuntimeError(f"this copy does not use its own packages: {found}")

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plant the fault in its file while the block runs."""
        path = self._folder / fault.file
        text = path.read_text(encoding="utf-8")
        try:
            _write(path, text.replace(fault.old, fault.new))
            yield
        finally:
            _write(path, text)

    def run_tests(
        self, name: str, tests: tuple[str, ...], is_faulty: bool, is_whole: bool = False
    ) -> Outcome:
        """Run tests up to the first failure; those of nightly runs, too, if `is_whole`."""
        began = time.monotonic()
        shutil.rmtree(self._folder / ".hypothesis", ignore_errors=True)
        settings = {"SYNK_TESTS": "all"} if is_whole else {}
        status, said = self._run(*_PYTEST, *tests, **settings)
        seconds = time.monotonic() - began
        if status is None:
            verdict, by = "hang" if is_faulty else "error", f"no test ended in {self._limit_s:g} s"
        elif status == 0:
            verdict, by = "MISSED" if is_faulty else "passed", ""
        else:
            failed = _FIRST_FAILURE.search(said)
            verdict = "caught" if is_faulty and status not in _NOTHING_TRIED else "error"
            by = failed[1] if failed else f"pytest ended with {status}: {said[-200:]!r}"
        return Outcome(name, verdict, by, seconds)

    def _run(self, *arguments: str, **more: str) -> tuple[Optional[int], str]:
        """Run Python here; return its exit status, None if it fell silent, and what it printed."""
        settings = {_MARK: str(self._folder), "TMPDIR": str(self._folder / "t"), **more}
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [*_APART, self._python, *arguments],
                cwd=self._folder,
                env={"SYNKHRONOS_USE_GPU": "0", **os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = process.poll()
            size, heard = 0, time.monotonic()
            while status is None and time.monotonic() - heard < self._limit_s:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.2)
                # Slow tests on a busy machine are no hang, as long as one after the other ends.
                if os.fstat(output.fileno()).st_size > size:
                    size, heard = os.fstat(output.fileno()).st_size, time.monotonic()
            if status is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            end_all(self._folder)
            output.seek(0)
            return status, output.read()


def _apart() -> list[str]:
    """Return what gives a command a /dev/shm of its own, if this user may have that."""
    mount = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    with suppress(OSError):
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return []


_APART = _apart()


def end_all(folder: Path) -> None:
    """Kill every process that runs in a copy, or in a folder of copies."""
    marks = [f"\0{_MARK}={folder}{end}".encode() for end in ("\0", "/")]
    deadline = time.monotonic() + 10
    found = True
    while found and time.monotonic() < deadline:
        found = False
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended meanwhile, or another user's
                settings = b"\0" + (entry / "environ").read_bytes()
                if any(mark in settings for mark in marks):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True


def _files(root: Path) -> list[str]:
    """Return all files of a checkout that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=root, text=True).split("\0")
    return sorted({name for name in names if name and os.path.lexists(root / name)})


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    # What was compiled of another text may have been of the same size, and the same second.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
