"""A run as a user would start it, in folders of its own, and what outsiders can see of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

from synk_testing import Program, descendants, descriptors

PROGRAM = """
import os, sys
os.umask(0)
import json, time
import numpy as np
from synk_testing.engine import T, as_op, engine
from synk_core import Runtime
from synk_core.exceptions import WorkerDied

gate = sys.argv[2]

@as_op([T.dvector], [T.dvector])
def behave(values):
    deadline = time.monotonic() + 60
    while values.size and values.max() > 100 and not os.path.exists(gate):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return values * 2

x = T.dvector("x")
w = engine.shared(np.arange(4.0), name="w")
with Runtime(int(sys.argv[3]), use_gpu=False, backend=sys.argv[1]) as runtime:
    print(json.dumps({"workers": runtime.worker_pids}), flush=True)
    f = runtime.function([x], [(behave(x).sum(), "sum"), (x, "gather")], mode="FAST_COMPILE")
    held = runtime.data(np.arange(50.0), oversize=2)
    for line in iter(sys.stdin.readline, ""):
        top = float(line)
        values = np.append(np.arange(9.0), top)
        try:
            total, gathered = f(values)
            runtime.collectives.all_reduce(w, "sum")
            assert total == 2 * values.sum() and (gathered == values).all()
            assert (runtime.collectives.gather(w) == w.get_value()).all()
            held.set_value(values)
            assert f(held)[0] == total
            print("right", flush=True)
        except WorkerDied as died:
            print("died", died.rank, died.signal, flush=True)
            break
"""


class Run:
    """A run of some ranks.

    Attributes:
        home, temporary, cache: its folders.
        gate: while this file is not there, a call with a value above 100 goes on.
        seen: all its processes that were ever looked at.
    """

    def __init__(self, folder: Path, backend: str, ranks: int, environment: Dict[str, str]) -> None:
        self.home, self.temporary = folder / "home", folder / "t"
        self.cache, self.gate = folder / "cache", folder / "gate"
        for place in (self.home, self.temporary, self.cache):
            place.mkdir(exist_ok=True)
        self.home.chmod(0o755)
        self.temporary.chmod(0o1777)
        self.program = Program(
            PROGRAM,
            backend,
            self.gate,
            ranks,
            environment={
                "HOME": str(self.home),
                "TMPDIR": str(self.temporary),
                "XDG_CACHE_HOME": str(self.cache),
                # Without a compiler there is nothing to wait for.
                "THEANO_FLAGS": f"cxx=,base_compiledir={folder / 'compiled'}",
                "PYTHONWARNINGS": "ignore",
                **environment,
            },
            grace_s=30.0,
        )
        self.workers: Tuple[int, ...] = tuple(self.program.answer()["workers"])

    def line(self) -> str:
        """The next line that it prints."""
        return self.program.line()

    def ask(self, top: float) -> None:
        """Have it call; above 100 the call goes on until the gate is there."""
        self.program.send(top)

    def pids(self) -> List[int]:
        """Its processes, the master first."""
        return [self.program.pid, *descendants(self.program.pid)]

    def end(self) -> int:
        """Let it end; returns its exit status."""
        return self.program.end()

    def kill(self) -> None:
        """End it, whatever it does; nothing happens if it has ended."""
        if self.program.status is None:
            self.program.kill()


@contextlib.contextmanager
def running(
    folder: Path, backend: str = "shm", ranks: int = 3, **environment: str
) -> Iterator[Run]:
    """A run in folders below `folder`; nothing of it is left afterwards."""
    run = Run(folder, backend, ranks, environment)
    try:
        yield run
    finally:
        # The master alone: the others have to notice.
        run.kill()
        run.program.close()


def sockets_of(pid: int) -> Set[str]:
    """Inodes of a process's sockets."""
    return {text[8:-1] for text in descriptors(pid).values() if text.startswith("socket:[")}


def table(name: str) -> List[List[str]]:
    """The lines of ``/proc/net/<name>``, in fields; none if there is no such table here."""
    with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}") as file:
        return [line.split(maxsplit=7 if name == "unix" else -1) for line in file][1:]
    return []


def unix_sockets() -> Dict[str, str]:
    """Paths of all sockets of the Unix kind by inode; "" where they have none."""
    rows = table("unix")
    return {row[6]: row[7].strip() if len(row) > 7 else "" for row in rows}


def network_inodes() -> Set[str]:
    """Inodes of all sockets of the internet's kinds, whether they listen or not."""
    names = ["tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "icmp", "icmp6"]
    return {row[9] for name in names for row in table(name)}


def evidence(pids: List[int]) -> Any:
    """What was wrong with the sockets of these processes: a list of words."""
    wrong = []
    for pid in pids:
        inodes = sockets_of(pid)
        known, internet = unix_sockets(), network_inodes()
        for inode in inodes:
            path = known.get(inode)
            if inode in internet:
                wrong.append(f"{pid}: a socket of the internet")
            elif path is None:
                # It may have been made, or closed, between two looks.
                if inode in sockets_of(pid) and inode not in unix_sockets():
                    wrong.append(f"{pid}: a socket of an unknown kind")
            elif path.startswith("@"):
                wrong.append(f"{pid}: an abstract name {path}")
            elif path:
                with contextlib.suppress(FileNotFoundError):  # removed: nobody finds it
                    status = os.lstat(os.path.dirname(path))
                    if status.st_mode & 0o7777 != 0o700 or status.st_uid != os.geteuid():
                        wrong.append(f"{pid}: {path} in a folder of mode {status.st_mode:o}")
    return wrong
