"""The tests' side of the programs in `_fault_host`: started ahead, watched, killed if they hang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

LIMIT_S = 60.0
"""For a case, however it hangs."""

START_LIMIT_S = 120.0


class Host:
    """A program that is a master.

    Args:
        folder: for its temporary files, and what it prints.
        prefix: of its command.
    """

    def __init__(self, folder: Path, prefix: Sequence[str] = (), **environment: str) -> None:
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        self.mark = folder / "mark"
        self.temporary = temporary
        self._printed = (folder / "printed").open("w+")
        self._said = b""
        self._due = 0
        reading, writing = os.pipe()
        self._answers = reading
        self.process = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                "-u",
                str(Path(__file__).with_name("_fault_host.py")),
                str(writing),
            ],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "TMPDIR": str(temporary),
                "SYNK_THEANO_FAULTS_MARK": str(self.mark),
                "SYNKHRONOS_FLIGHT_DIR": str(folder / "flight"),
                **environment,
            },
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        self.workers: List[int] = []

    def tell(self, do: str, **order: Any) -> None:
        """Have it do something; its answers come one by one."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        self.process.stdin.flush()
        self._due += 1

    def answer(self, limit_s: float = LIMIT_S) -> Dict[str, Any]:
        """Its next answer; it is killed if none comes.

        Raises:
            AssertionError: none has come, or it failed in a way that no case expects.
        """
        line = self._line(time.monotonic() + limit_s)
        found: Dict[str, Any] = json.loads(line)
        assert "broken" not in found, f"{found['broken']}\nIt printed:\n{self.printed()}"
        if "pids" in found:
            self.workers = [*found["pids"], *filter(None, [found["keeper"]])]
        else:
            self._due -= 1
        return found

    def settle(self) -> None:
        """Read what it has been told to do and was not asked for."""
        while self._due:
            self.answer(START_LIMIT_S)

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._said:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self._answers], [], [], left)[0]:
                stacks = self._stacks()
                self.kill()
                raise AssertionError(f"it hangs, and was killed. It printed:\n{stacks}")
            chunk = os.read(self._answers, 65536)
            if not chunk:
                self.process.wait(LIMIT_S)
                raise AssertionError(
                    f"it ended with status {self.process.returncode}. It printed:\n{self.printed()}"
                )
            self._said += chunk
        line, _, self._said = self._said.partition(b"\n")
        return line

    def _stacks(self) -> str:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        return self.printed()

    def printed(self) -> str:
        """What it and its workers have printed."""
        self._printed.flush()
        self._printed.seek(0)
        return self._printed.read()[-20000:]

    def family_left(self, family: str) -> List[str]:
        """What is in shared memory of it; but for a lock file, which the next to start removes."""
        return [
            name
            for name in os.listdir("/dev/shm")
            if family in name.split(".") and not name.endswith(".lock")
        ]

    def kill(self) -> None:
        """End it and all that it has started."""
        for pid in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(LIMIT_S)
        self._close()

    def end(self) -> Dict[str, Any]:
        """Have it close its runtime and end; what was left."""
        self.settle()
        self.tell("end")
        found = self.answer()
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(LIMIT_S) == 0, self.printed()
        self._close()
        return found

    def _close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        self._printed.close()


class Hosts:
    """Programs that are kept ready for the next cases, because to start takes the longest.

    Args:
        folder: for their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._waiting: Dict[Tuple[Tuple[str, Any], ...], Deque[Host]] = {}

    def new(self, **how: Any) -> Host:
        self._count += 1
        return Host(self._folder / str(self._count), **how)

    def take(self, options: Optional[Dict[str, Any]], ahead: int) -> Host:
        """A program with such a runtime; None for one without.

        Args:
            ahead: how many such programs to have.
        """
        waiting = self._waiting.setdefault(_key(options), deque())
        while len(waiting) < ahead:
            waiting.append(self._prepared(self.new(), options))
        host = waiting.popleft()
        try:
            host.settle()
        except BaseException:
            host.kill()
            raise
        return host

    def give_back(self, host: Host, options: Optional[Dict[str, Any]], closed: bool) -> None:
        """A program that may be used again; `closed` if it has no runtime any more."""
        if host.process.poll() is not None:
            return
        if closed:
            self._prepared(host, options)
        self._waiting[_key(options)].append(host)

    def replace(self, host: Host, options: Optional[Dict[str, Any]]) -> None:
        """One that is gone."""
        host.kill()
        self._waiting[_key(options)].append(self._prepared(self.new(), options))

    def beside(self, options: Optional[Dict[str, Any]]) -> Optional[Host]:
        """Another one that is ready."""
        waiting = self._waiting[_key(options)]
        return waiting[0] if waiting else None

    def _prepared(self, host: Host, options: Optional[Dict[str, Any]]) -> Host:
        if options is not None:
            host.tell("prepare", **options)
        return host

    def end(self) -> None:
        """End all; nothing may be left of any."""
        for waiting in self._waiting.values():
            for host in waiting:
                left = host.end()["left"]
                assert not any(left.values()), left


def _key(options: Optional[Dict[str, Any]]) -> Tuple[Tuple[str, Any], ...]:
    return tuple(sorted((options or {}).items()))


def wait_gone(pids: Sequence[int], limit_s: float) -> float:
    """Seconds until all of these processes were gone; a zombie holds nothing any more.

    Raises:
        AssertionError: some were not.
    """
    began = time.monotonic()
    while left := [pid for pid in pids if is_there(pid)]:
        seconds = time.monotonic() - began
        assert seconds < limit_s, f"processes {left} are still there after {seconds:.1f} s"
        time.sleep(0.002)
    return time.monotonic() - began


def is_there(pid: int) -> bool:
    """Whether a process is there, and holds anything."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
