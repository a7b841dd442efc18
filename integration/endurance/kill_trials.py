"""Kill -9, or Ctrl-C, at random moments of a runtime at work; time what follows.

    python integration/endurance/kill_trials.py --trials 1000 --interrupts 300 --json results.json

A worker is killed: the program gets `WorkerDied` with this worker's rank; the seconds are those
from the kill, or from the next call, until the exception, or the return of `close()`, when all
other workers and the memory are gone. The master is killed: the seconds are those until every
process that it had started is gone. The master gets SIGINT, in half of the trials with all its
workers: the program gets `KeyboardInterrupt`, and works on; if it came out of a call, all ranks
have the values from before it, otherwise those after it. After each trial all that is left is
counted. Exits with status 1 if a trial went otherwise, or if anything was left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import _results
import numpy as np
from _victims import STATES, Trouble, Victim, in_memory, reaped, taken_away

from synk_testing import children, descendants
from synk_testing.processes import described, kill

KILLED = ("worker", "master", "interrupted")
LEAKS = ("processes", "segments", "descriptors", "files")
START_LIMIT_S = 120.0
HANG_S = 30.0
LIMIT_S = 10.0
"""The contracts are 0.1 s to notice, 1.2 s to end the rest, and 2 s after the master; a trial that
takes longer than this is a failure even on a machine that is busy with other things."""

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Trials:
    """Trials, one after the other, with a new program after each that was killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._program: Optional[Victim] = None
        self._start_s = 5.0
        self.printed = ""

    def run(self, number: int, killed: str) -> dict[str, Any]:
        """Do one trial; return what was killed, how long it took, and what was left."""
        rng = self._rng
        size = rng.choice([2, 2, 3])
        trial = {
            "trial": number,
            "state": rng.choice(STATES),
            "size": size,
            "master": rng.randrange(size),
            "backend": rng.choice(["shm", "shm", "shm", "zmq"]),
            "seed": rng.randrange(2**31),
            "killed": killed,
        }
        victims = {
            "worker": [rank for rank in range(size) if rank != trial["master"]],
            "interrupted": ["master", "all"],
            "master": [trial["master"]],
        }
        trial["victim"] = rng.choice(victims[killed])
        program = self._program = self._program or Victim(self._folder)
        kinds = {"worker": self._kill_worker, "interrupted": self._interrupt}
        try:
            kinds.get(killed, self._kill_master)(program, trial)
        except Trouble as trouble:
            trial["trouble"] = str(trouble)
            self.printed = program.abort()
        if killed == "master" or "trouble" in trial:
            self.end()
        return trial

    def _begin(self, program: Victim, trial: dict[str, Any]) -> dict[str, Any]:
        """Give the program its work; return what it said when it began."""
        until = time.monotonic() + START_LIMIT_S
        program.tell(**trial)
        told = program.await_event("starting", until)
        if trial["killed"] == "worker" or trial["state"] != "starting":
            told = program.await_event("started", until)
        if trial["state"] != "starting":
            self._start_s = program.await_event("at work", until)["at"] - told["at"]
        return told

    def _nap(self, trial: dict[str, Any]) -> None:
        most_s = 1.2 * self._start_s if trial["state"] == "starting" else 0.6
        time.sleep(self._rng.random() * most_s)

    def _kill_worker(self, program: Victim, trial: dict[str, Any]) -> None:
        told, victim = self._begin(program, trial), trial["victim"]
        family = program.family()
        # It may have ended by itself when the time has come: no other process shall be hit.
        fd = os.pidfd_open(told["workers"][str(victim)])
        self._nap(trial)
        killed_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
        event = self._caught(program, killed_at, family, trial)
        if event["caught_at"] > killed_at:
            trial["seconds"] = event["caught_at"] - max(killed_at, event["called_at"])
        if trial["state"] == "closing" and event["type"] == "Finished":
            return
        if (event["type"], event["rank"], event["signal"]) != ("WorkerDied", victim, "SIGKILL"):
            raise Trouble(
                f"got {event['type']} of rank {event['rank']} ({event['signal']}), expected "
                f"WorkerDied of rank {victim}: {event['message']}"
            )

    def _caught(
        self, program: Victim, struck_at: float, family: Optional[str], trial: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what the program has caught; put into the trial what was left by then."""
        while (event := program.event(struck_at + HANG_S)) and event["event"] != "caught":
            pass
        if event is None:
            raise Trouble(f"nothing was raised in {HANG_S:g} s")
        if program.descriptors is None:
            program.descriptors = event["descriptors"]
        descriptors = max(event["descriptors"] - program.descriptors, 0)
        left = (event["children"], in_memory(family), descriptors, taken_away(program.temporary))
        trial["left"] = dict(zip(LEAKS, left))
        if not event["closed"]:
            raise Trouble(f"the runtime is still open after {event['type']}: {event['message']}")
        return event

    def _interrupt(self, program: Victim, trial: dict[str, Any]) -> None:
        self._begin(program, trial)
        self._nap(trial)
        family = program.family()
        workers = descendants(program.pid) if trial["victim"] == "all" else []
        struck_at = time.monotonic()
        kill([program.pid, *workers], signal.SIGINT)
        event = self._caught(program, struck_at, family, trial)
        trial["seconds"] = event["caught_at"] - struck_at
        if event["type"] != "KeyboardInterrupt":
            raise Trouble(f"got {event['type']}: {event['message']}")
        if event.get("wrong"):
            raise Trouble(event["wrong"])

    def _kill_master(self, program: Victim, trial: dict[str, Any]) -> None:
        self._begin(program, trial)
        self._nap(trial)
        family = program.family()
        killed_at = time.monotonic()
        program.kill()
        while reaped():  # the orphans are children of this process now
            if time.monotonic() > killed_at + HANG_S:
                raise Trouble(f"left behind: {described(descendants(os.getpid()))}")
            time.sleep(0.002)
        trial["seconds"] = time.monotonic() - killed_at
        # A dead process has no descriptor open.
        left = (len(children()), in_memory(family), 0, taken_away(program.temporary))
        trial["left"] = dict(zip(LEAKS, left))

    def end(self) -> None:
        if self._program is not None:
            self._program.close()
        self._program = None


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"trials": len(trials)}
    told["wrong"] = sum("trouble" in trial for trial in trials)
    told["leaks"] = dict.fromkeys(LEAKS, 0)
    for trial in trials:
        for what, left in trial.get("left", {}).items():
            told["leaks"][what] += left if isinstance(left, int) else len(left)
    for killed in KILLED:
        seconds = [t["seconds"] for t in trials if t["killed"] == killed and "seconds" in t]
        told[killed] = {"trials": len(seconds)}
        if seconds:
            middle, high = np.percentile(seconds, [50, 99])
            times = {"median_s": middle, "p99_s": high, "worst_s": max(seconds)}
            told[killed].update({name: round(float(v), 4) for name, v in times.items()})
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="how often to kill (100)")
    parser.add_argument("--interrupts", type=int, default=0, help="how often Ctrl-C comes (0)")
    arguments = _results.begin(parser)
    seed = arguments.seed
    # Whatever loses its parent becomes this process's child: nothing can hide.
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kill-trials-") as folder:
        trials = Trials(Path(folder), seed)
        rng = random.Random(seed)
        todo = rng.choices(["worker", "worker", "master"], k=arguments.trials)
        todo += ["interrupted"] * arguments.interrupts
        rng.shuffle(todo)
        try:
            for number, killed in enumerate(todo):
                trial = trials.run(number, killed)
                done.append(
                    {k: round(v, 4) if isinstance(v, float) else v for k, v in trial.items()}
                )
                if trial.get("seconds", 0.0) > LIMIT_S:
                    done[-1].setdefault("trouble", f"it took more than {LIMIT_S:g} s")
                if "trouble" in done[-1] or any(trial["left"].values()):
                    print(json.dumps(done[-1]), flush=True)
                if number % 50 == 49:
                    print(f"{number + 1} trials", flush=True)
                if "trouble" in trial:
                    print(trials.printed, flush=True)
        finally:
            trials.end()
            told = summary(done)
            _results.write(arguments.json, {"seed": seed, "summary": told, "trials": done})
    print(json.dumps({name: told[name] for name in ("trials", "wrong", "leaks")}))
    for killed in KILLED:
        print(f"{killed}: {json.dumps(told[killed])}")
    return 1 if told["wrong"] or any(told["leaks"].values()) or len(done) < len(todo) else 0


if __name__ == "__main__":
    sys.exit(main())
