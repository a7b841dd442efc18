"""Kill -9, at random moments, a worker or the master of a runtime at work; time what follows.

    python integration/endurance/kill_trials.py --trials 1000 --json results.json

One trial: a program (`_victim.py`) has a runtime of 2 or 3 ranks do random work of one kind. After
a random time one of its processes gets SIGKILL. If it was a worker, the program has to get
`WorkerDied` with this worker's rank, and a flight record of it; the seconds are those from the
kill, or from the next call if the master was in none, to the exception in the program, when all
other workers are gone and the memory is given back. If it was the master, they are those from the
kill until every process that it had started is gone. After each trial all that is left is counted:
processes, shared memory, descriptors, temporary files.

Exits with status 1 if a trial went otherwise, or if anything was left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import _results
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
SHARED_MEMORY = Path("/dev/shm")
STATES = (
    "starting",
    "computing",
    "updating",
    "collective",
    "stepping",
    "distributing",
    "growing",
    "idle",
    "mixed",
)
"""Methods of `_victim.Work`."""

LEAKS = ("processes", "segments", "descriptors", "files")
START_LIMIT_S = 120.0
HANG_S = 30.0
"""After the kill: whoever has said nothing by then hangs."""

LIMIT_S = 10.0
"""The contracts are 0.1 s to notice, 1.2 s to end the rest, and 2 s after the master; a trial that
takes longer than this is a failure even on a machine that is busy with other things."""

ABORT_S = 10.0

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Program:
    """The victim, or the victim's master: one process, for one trial after the other."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.temporary = folder / "tmp"
        self.flights = folder / "flight"
        self.temporary.mkdir(exist_ok=True)
        # Nothing is compiled but what Theano itself needs, once.
        flags = f"mode=FAST_COMPILE,base_compiledir={folder / 'theano'}"
        self._log = open(log, "wb")  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "_victim.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                "SYNKHRONOS_USE_GPU": "0",
                "SYNKHRONOS_FLIGHT_DIR": str(self.flights),
                "THEANO_FLAGS": flags,
                "TMPDIR": str(self.temporary),
            },
        )
        self._buffer = b""
        self.descriptors: Optional[int] = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def order(self, job: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def event(self, until: float) -> Optional[dict[str, Any]]:
        """The next thing it tells; None if there is none until this moment, or ever."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            chunk = os.read(fd, 65536) if select.select([fd], [], [], max(left, 0))[0] else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def await_event(self, name: str, until: float) -> dict[str, Any]:
        """The next event of this name.

        Raises:
            Trouble: the program failed, or tells nothing of the kind.
        """
        while True:
            event = self.event(until)
            if event is None:
                raise Trouble(f"no {name!r} in time")
            if event["event"] == name:
                return event
            if event["event"] == "caught":
                raise Trouble(f"{event['type']} before {name!r}: {event['message'][:500]}")

    def family(self) -> Optional[str]:
        """The name that all its shared memory has in common, once it has some."""
        for fd in (Path("/proc") / str(self.pid) / "fd").iterdir():
            try:
                found = re.search(r"/synk\.(?:\d+\.)?([0-9a-f]{8})\.lock$", os.readlink(fd))
            except OSError:  # closed meanwhile
                continue
            if found:
                return found.group(1)
        return None

    def record(self) -> Optional[dict[str, Any]]:
        """Its newest flight record."""
        files = sorted(self.flights.glob("*.json"))
        return json.loads(files[-1].read_text(encoding="utf-8")) if files else None

    def abort(self) -> None:
        """Have it tell its stacks, into the log, and end it with all it has started."""
        self.process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ABORT_S)
        self.end()

    def end(self) -> None:
        """End it, and whatever it has left."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()
        for process in psutil.Process().children(recursive=True):
            process.kill()
        while reaped():
            time.sleep(0.01)


class Trouble(Exception):
    """A trial went otherwise than it should."""


def reaped() -> bool:
    """Take in children that have ended; whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def names_in_memory(family: Optional[str]) -> list[str]:
    """The files in shared memory that are of a family, and this user's."""
    found = []
    for entry in SHARED_MEMORY.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another program's, and gone
            if family and f".{family}." in entry.name and entry.stat().st_uid == os.geteuid():
                found.append(entry.name)
    return found


def segments(family: Optional[str]) -> list[str]:
    """What a program has in shared memory; its empty lock file is not memory."""
    return [name for name in names_in_memory(family) if not name.endswith(".lock")]


def lock_files(family: Optional[str]) -> int:
    """How many of its lock files are left."""
    return len(names_in_memory(family)) - len(segments(family))


class Trials:
    """Trials, one after the other, with a new program after each that was killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._program: Optional[Program] = None
        self._start_s = 5.0
        self.log = folder / "stderr.txt"

    def run(self, number: int) -> dict[str, Any]:
        """One trial: what was killed and when, how long it took, and what was left."""
        rng = self._rng
        size = rng.choice([2, 2, 3])
        job = {
            "state": rng.choice(STATES),
            "size": size,
            "master": rng.randrange(size),
            "backend": rng.choice(["shm", "shm", "shm", "zmq"]),
            "seed": rng.randrange(2**31),
        }
        killed = rng.choice(["worker", "worker", "master"])
        victim = rng.choice([rank for rank in range(size) if rank != job["master"]])
        moment = rng.random()
        trial = {"trial": number, **job, "killed": killed, "victim": victim}
        if self._program is None:
            self._program = Program(self._folder, self.log)
        program = self._program
        try:
            if killed == "worker":
                self._kill_worker(program, job, victim, moment, trial)
            else:
                trial["victim"] = job["master"]
                self._program = None
                self._kill_master(program, job, moment, trial)
        except Trouble as trouble:
            trial["trouble"] = str(trouble)
            program.abort()
            self._program = None
        return trial

    def _begin(self, program: Program, job: dict[str, Any], event: str) -> dict[str, Any]:
        began = time.monotonic()
        program.order(job)
        told = program.await_event("starting", began + START_LIMIT_S)
        if event != "starting":
            told = program.await_event("started", began + START_LIMIT_S)
        if event == "at work":
            pids = told
            told = program.await_event("at work", began + START_LIMIT_S)
            self._start_s = told["at"] - pids["at"]
            return pids
        return told

    def _nap(self, job: dict[str, Any], moment: float) -> None:
        time.sleep(moment * (1.2 * self._start_s if job["state"] == "starting" else 0.6))

    def _kill_worker(
        self, program: Program, job: dict[str, Any], victim: int, moment: float, trial: dict
    ) -> None:
        told = self._begin(program, job, "started" if job["state"] == "starting" else "at work")
        family = program.family()
        self._nap(job, moment)
        killed_at = time.monotonic()
        os.kill(told["workers"][str(victim)], signal.SIGKILL)
        while (event := program.event(killed_at + HANG_S)) and event["event"] != "caught":
            pass
        if event is None:
            raise Trouble(f"nothing was raised in {HANG_S:g} s")
        trial["since_kill_s"] = event["caught_at"] - killed_at
        trial["seconds"] = event["caught_at"] - max(killed_at, event["called_at"])
        trial["doing"] = event["doing"]
        first = program.descriptors is None
        program.descriptors = event["descriptors"] if first else program.descriptors
        trial["left"] = {
            "processes": event["children"],
            "segments": segments(family),
            "descriptors": max(event["descriptors"] - program.descriptors, 0),
            "files": taken_away(program.temporary),
        }
        trial["rss_mib"] = event["rss"] // 2**20
        trial["alone_s"] = event["alone_s"]
        if (event["type"], event["rank"], event["signal"]) != ("WorkerDied", victim, "SIGKILL"):
            raise Trouble(
                f"got {event['type']} of rank {event['rank']} ({event['signal']}), expected "
                f"WorkerDied of rank {victim}: {event['message']}"
            )
        if not event["closed"]:
            raise Trouble("the runtime is still open")
        record = program.record()
        if record is None or record["error"]["rank"] != victim:
            raise Trouble(f"no flight record of it: {record and record['error']}")

    def _kill_master(
        self, program: Program, job: dict[str, Any], moment: float, trial: dict
    ) -> None:
        starting = job["state"] == "starting"
        told = self._begin(program, job, "starting" if starting else "at work")
        self._nap(job, moment)
        family = program.family()
        workers = set(told.get("workers", {}).values())
        killed_at = time.monotonic()
        program.process.kill()
        program.process.wait()
        # The orphans are children of this process now.
        while True:
            left = reaped()
            if "workers_s" not in trial and workers and not workers & children():
                trial["workers_s"] = time.monotonic() - killed_at
            if not left:
                break
            if time.monotonic() > killed_at + HANG_S:
                raise Trouble(f"left behind: {psutil.Process().children(recursive=True)}")
            time.sleep(0.002)
        trial["seconds"] = time.monotonic() - killed_at
        trial["left"] = {
            "processes": len(children()),
            "segments": segments(family),
            "descriptors": 0,  # a process that is gone has none
            "files": taken_away(program.temporary),
        }
        trial["lock_files"] = lock_files(family)
        program.end()

    def end(self) -> None:
        if self._program is not None:
            self._program.end()


def taken_away(folder: Path) -> list[str]:
    """The temporary files that were left; they are not there for the next trial."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return found


def children() -> set[int]:
    """Process ids of this process's children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures: by what was killed, and in which state."""
    told: dict[str, Any] = {"trials": len(trials)}
    told["wrong"] = sum("trouble" in trial for trial in trials)
    told["leaks"] = dict.fromkeys(LEAKS, 0)
    for trial in trials:
        for what, left in trial.get("left", {}).items():
            told["leaks"][what] += left if isinstance(left, int) else len(left)
    for killed in ("worker", "master"):
        of = [t for t in trials if t["killed"] == killed and "seconds" in t]
        told[killed] = {"all": figures([t["seconds"] for t in of])}
        for state in STATES:
            told[killed][state] = figures([t["seconds"] for t in of if t["state"] == state])
    return told


def figures(seconds: list[float]) -> dict[str, Any]:
    """Median, 99th percentile and the worst of some times."""
    if not seconds:
        return {"trials": 0}
    middle, high = np.percentile(seconds, [50, 99])
    values = {"median_s": middle, "p99_s": high, "worst_s": max(seconds)}
    return {"trials": len(seconds), **{name: round(float(v), 4) for name, v in values.items()}}


def show(told: dict[str, Any]) -> None:
    """Print the figures as a table."""
    console = Console()
    table = Table(title=f"{told['trials']} times kill -9")
    for column in ("killed", "while it was", "trials", "median", "99 %", "worst"):
        table.add_column(
            column, justify="left" if column in ("killed", "while it was") else "right"
        )
    for killed in ("worker", "master"):
        for state, row in told[killed].items():
            if row["trials"]:
                cells = [f"{1000 * row[n]:.0f} ms" for n in ("median_s", "p99_s", "worst_s")]
                table.add_row(killed, state, str(row["trials"]), *cells)
    console.print(table)
    leaks = ", ".join(f"{count} {what}" for what, count in told["leaks"].items())
    worst = max(told[k]["all"].get("worst_s", 0.0) for k in ("worker", "master"))
    console.print(f"Worst: {worst:.3f} s. Left behind: {leaks}. Otherwise: {told['wrong']}.")


def main() -> int:
    """Run the trials; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--json", type=Path, default=None, help="write the results there")
    arguments = parser.parse_args()
    # Told to stop, it ends what it has started, and writes what it has; only exceptions do that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    # Whatever loses its parent becomes this process's child: nothing can hide.
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kill-trials-") as folder:
        trials = Trials(Path(folder), seed)
        try:
            for number in range(arguments.trials):
                trial = trials.run(number)
                done.append(
                    {k: round(v, 4) if isinstance(v, float) else v for k, v in trial.items()}
                )
                if trial.get("seconds", 0.0) > LIMIT_S:
                    done[-1].setdefault("trouble", f"it took more than {LIMIT_S:g} s")
                if "trouble" in done[-1] or any(trial["left"].values()):
                    print(json.dumps(done[-1]), flush=True)
                if "trouble" in trial:
                    print(trials.log.read_text(encoding="utf-8")[-20000:], flush=True)
        finally:
            trials.end()
            told = summary(done)
            if arguments.json is not None:
                content = _results.described("kill_trials", seed=seed, summary=told, trials=done)
                _results.write(arguments.json, content)
    print(f"seed {seed}")
    show(told)
    return 1 if told["wrong"] or any(told["leaks"].values()) or len(done) < arguments.trials else 0


if __name__ == "__main__":
    sys.exit(main())
