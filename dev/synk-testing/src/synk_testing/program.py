"""Programs under test: processes with sessions of their own, and all that these start."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import processes

LIMIT_S = 120.0
"""Seconds for each thing that a program is asked for."""

GRACE_S = 10.0
"""Seconds from a program's end until all that it has started is gone."""

_STACKS_S = 5.0

Source = Union[str, Path, Sequence[str]]
"""Code, the path of a file, or words for the interpreter such as ``["-m", "this"]``."""


class Done(NamedTuple):
    """A program that has ended: its exit status, below 0 for a signal, and what it printed."""

    status: int
    out: str
    err: str


class Program:
    """Code, or a file, in a process of its own, as a user would start it; see `usual_signals`.

    It leads a session. As a context manager it kills what still runs at the end, with all that it
    has started; of a program that has ended nothing may be left.

    Args:
        source: code, the path of a file, or words for the interpreter: ``["-m", "this"]``.
        prefix: of the command, such as ``("unshare", "-m")``.
        environment: changes of it; None takes a variable away.
        zygote: to fork it from, unless it needs other options or variables than the zygote has.
        limit_s: seconds for each thing that it is asked for, unless another limit is given.
        grace_s: seconds from its end until all is gone that it has started.
        stacks: whether it writes its stacks when it hangs or dies of a fault.
    """

    def __init__(
        self,
        source: Source,
        *arguments: object,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        environment: Optional[Mapping[str, Optional[str]]] = None,
        folder: Union[str, Path, None] = None,
        zygote: Any = None,
        limit_s: float = LIMIT_S,
        grace_s: float = GRACE_S,
        stacks: bool = True,
        terminal: Optional[int] = None,
    ) -> None:
        self.limit_s = limit_s
        self.grace_s = grace_s
        self._mark = uuid.uuid4().hex
        self._said = b""
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        theirs_in, self._in = os.pipe()
        self._out, theirs_out = os.pipe()
        variables = {**os.environ, **(environment or {}), processes.MARK: self._mark}
        env = {name: value for name, value in variables.items() if value is not None}
        own = (theirs_in, theirs_out, self._err.fileno())
        streams = own if terminal is None else (terminal,) * 3
        words = list(map(str, arguments))
        try:
            if zygote is not None and not prefix and zygote.fits(source, options, env):
                self._process: Any = zygote.fork(source, words, env, folder, streams, stacks)
            else:
                how = ["-X", "faulthandler", *options] if stacks else options
                command = [*prefix, sys.executable, *how, *_named(source), *words]
                self._process = subprocess.Popen(
                    command,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    env=env,
                    cwd=folder,
                    start_new_session=True,
                )
        except BaseException:
            for fd in (self._in, self._out):
                os.close(fd)
            self._err.close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self.pid: int = self._process.pid

    @property
    def status(self) -> Optional[int]:
        """Its exit status, below 0 for a signal; None while it runs."""
        found: Optional[int] = self._process.poll()
        return found

    @property
    def err(self) -> str:
        """The text that it and its processes have written to standard error."""
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size, 0).decode(errors="replace")

    def line(self, limit_s: Optional[float] = None) -> str:
        """Return the next line that it prints; if none comes, kill it and raise its stacks."""
        text = self.line_or_end(limit_s)
        if text is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STACKS_S)
            self._fail(f"it ended with status {self.status} and said nothing more")
        return str(text)

    def line_or_end(self, limit_s: Optional[float] = None) -> Optional[str]:
        """Return the next line; None if it has ended, with all processes that could print."""
        seconds = self.limit_s if limit_s is None else limit_s
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            if not _is_readable(self._out, deadline - time.monotonic()):
                self._fail(f"it has said nothing for {seconds} s")
            if not self._take():
                break
        line, end, self._said = self._said.partition(b"\n")
        return line.decode(errors="replace").strip() if line or end else None

    def has_said(self, seconds: float = 0.0) -> bool:
        """Return whether there is something to read, or it has ended, in this time."""
        return b"\n" in self._said or _is_readable(self._out, seconds)

    def answer(self, limit_s: Optional[float] = None) -> Any:
        """Return the next line that it prints, which is JSON."""
        return json.loads(self.line(limit_s))

    def send(self, line: object = "") -> None:
        """Send it a line."""
        os.write(self._in, f"{line}\n".encode())

    def tell(self, **order: Any) -> None:
        """Send it a line of JSON."""
        self.send(json.dumps(order))

    def close_input(self) -> None:
        """Close its standard input."""
        self._in = _closed(self._in)

    def wait(self, limit_s: Optional[float] = None) -> int:
        """Wait until it ends; return its status. If it hangs, kill it and raise its stacks."""
        seconds = self.limit_s if limit_s is None else limit_s
        try:
            status: int = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._fail(f"not done after {seconds} s")
        return status

    def end(self, limit_s: Optional[float] = None) -> int:
        """Close its standard input and wait until it ends; return its exit status."""
        self.close_input()
        return self.wait(limit_s)

    def finish(self, line: Optional[object] = None, limit_s: Optional[float] = None) -> Done:
        """Send it this line as its last; return how it ended and what it has printed since."""
        seconds = self.limit_s if limit_s is None else limit_s
        deadline = time.monotonic() + seconds
        if line is not None:
            with contextlib.suppress(BrokenPipeError):
                self.send(line)
        self.close_input()
        while not _is_readable(self._out, deadline - time.monotonic()) or self._take():
            if time.monotonic() > deadline:
                self._fail(f"not done after {seconds} s")
        status = self.wait(max(deadline - time.monotonic(), 1.0))
        out, self._said = self._said.decode(errors="replace"), b""
        return Done(status, out, self.err)

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self._process.poll() is None:
            os.kill(self.pid, number)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Kill it, and nothing that it has started; return its exit status."""
        self.send_signal(number)
        return self.wait()

    def kill_all(self) -> None:
        """Kill it and all that it has started, in any session."""
        deadline = time.monotonic() + self.grace_s
        while (left := self.members()) and time.monotonic() < deadline:
            processes.kill(left)
            time.sleep(0.002)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.grace_s)

    def abort(self) -> str:
        """Make it write its stacks, if it still runs, and kill all; return what was printed."""
        if self.status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.send_signal(signal.SIGABRT)
                self._process.wait(_STACKS_S)
        self.kill_all()
        return self.printed()

    def members(self) -> List[int]:
        """Return its processes that hold anything."""
        below = processes.descendants(self.pid) if self._process.poll() is None else []
        found = {*processes.members({self.pid}, self._mark), *filter(processes.is_there, below)}
        return sorted(found)

    def wait_alone(self, limit_s: Optional[float] = None) -> None:
        """Wait until no process that it has started is left, nor itself if it has ended."""
        seconds = self.grace_s if limit_s is None else limit_s
        deadline = time.monotonic() + seconds
        while left := [pid for pid in self.members() if pid != self.pid or self.status is not None]:
            if time.monotonic() > deadline:
                names = processes.described(left)
                self.kill_all()
                raise AssertionError(f"left after {seconds} s: {names}\n{self.printed()}")
            time.sleep(0.01)

    def close(self) -> None:
        """Kill what still runs; raise AssertionError if something is left of what had ended."""
        if self._err.closed:
            return
        try:
            if self.status is None:
                self.kill_all()
            self.wait_alone()
        finally:
            self.close_input()
            self._out = _closed(self._out)
            self._err.close()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.kill_all()
        self.close()

    def printed(self) -> str:
        """Return what it has written to standard error, and the lines that were not read."""
        while self._out >= 0 and _is_readable(self._out, 0) and self._take():
            pass
        out = self._said.decode(errors="replace")
        return f"stdout:\n{out[-10000:]}\nstderr:\n{self.err[-20000:]}"

    def _take(self) -> bool:
        chunk = os.read(self._out, 65536)
        self._said += chunk
        return bool(chunk)

    def _fail(self, what: str) -> None:
        raise AssertionError(f"{what}\n{self.abort()}")


def run(source: Source, *arguments: object, line: Optional[object] = None, **how: Any) -> Done:
    """Run a program to its end; `how` is as of `Program`. Nothing of it may be left then."""
    with Program(source, *arguments, **how) as program:
        return program.finish(line)


def _named(source: Source) -> List[str]:
    if isinstance(source, str):
        return ["-c", source]
    return [str(source)] if isinstance(source, Path) else list(source)


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1
