"""The program of the kill trials: it works until it or a worker is killed, or Ctrl-C comes.

It reads orders on standard input, and reports events on standard output, one JSON object a line.
Times are those of `time.monotonic`, which all processes share.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Optional

from _victims import ACTS

from synk_core import Runtime
from synk_testing import children, descriptors

sys.path.append(str(Path(__file__).resolve().parents[2] / "packages/synk-core/tests"))
sys.path.append(f"{sys.path[-1]}/faults")

from _fault_bench import Bench

GRACE_S = 5.0
PATIENCE_S = 60.0
_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h


class Finished(Exception):
    """The runtime is closed, and nothing was raised."""


class Work:
    """Random acts on a runtime, and what is known of the values on all ranks.

    `act` is the last one, None while the values before it are being set; `called` is its beginning.
    """

    def __init__(self, runtime: Runtime, rng: random.Random) -> None:
        self.runtime, self.rng = runtime, rng
        self.called = time.monotonic()
        self.act: Optional[str] = None
        self.is_done = False
        self.bench = Bench(runtime, rng.randint(1, 2000), rng.randint(1, 60_000))

    def do(self, state: str) -> None:
        if state == "mixed":
            state = self.rng.choice([*ACTS, "idle"])
        if state == "idle":
            time.sleep(self.rng.uniform(0.1, 0.4))
        self.act, self.called = None, time.monotonic()
        self.bench.reset()
        act = self.rng.choice(ACTS.get(state, ("gather",)))
        self.is_done = False
        self.act, self.called = act, time.monotonic()
        assert getattr(self.bench, act)(), act
        self.is_done = True

    def close(self, waits: bool) -> None:
        tell("at work")
        time.sleep(self.rng.uniform(0.0, 0.6))
        self.called = time.monotonic()
        self.runtime.close()
        time.sleep(PATIENCE_S if waits else 0.0)
        raise Finished

    def wrong(self, within: bool = False) -> str:
        """Name wrong values of ranks; a call that was interrupted has not happened."""
        if self.act is None:
            return ""
        found = self.bench.verdict(self.act)
        wanted = {"after"} if self.is_done else {"before"} if within else {"before", "after"}
        right = any(found <= {"same", one} for one in wanted)
        return "" if right else f"{self.act}: the values are {found}, expected {wanted}"


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **values}), flush=True)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Start a runtime and work until something is raised; return what it was."""
    rng = random.Random(job["seed"])
    runtime: Optional[Runtime] = None
    doing: Optional[Work] = None
    error: BaseException
    is_interrupted, began = job["killed"] == "interrupted", time.monotonic()
    tell("starting")
    try:
        runtime = Runtime(job["size"], False, job["master"], backend=job["backend"])
        ranks = [rank for rank in range(job["size"]) if rank != job["master"]]
        tell("started", workers=dict(zip(map(str, ranks), runtime.worker_pids)))
        doing = Work(runtime, rng)
        doing.do(job["state"])
        if job["state"] == "closing":
            doing.close(waits=is_interrupted)
        tell("at work")
        while True:
            doing.do(job["state"])
    except BaseException as raised:
        at, error = time.monotonic(), raised
    told = {
        "caught_at": at,
        "called_at": began if doing is None else doing.called,
        "type": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "signal": getattr(error, "signal", None),
        "message": str(error)[:2000],
        "closed": runtime is None or runtime.closed,
    }
    if runtime is not None and is_interrupted and isinstance(error, KeyboardInterrupt):
        # The handler is one of the core's frames, too, wherever it has interrupted the program.
        frames = [(f.filename, f.name) for f in traceback.extract_tb(error.__traceback__)]
        handler = next((i for i, (file, name) in enumerate(frames) if is_handler(file, name)), None)
        within = any("/synk_core/" in file for file, _ in frames[:handler])
        told["wrong"] = "" if doing is None else went_on(doing, within)
        runtime.close()
        told["closed"] = runtime.closed
    return told


def is_handler(file: str, name: str) -> bool:
    """Return whether a frame is that of the handler of Ctrl-C."""
    return file.endswith("/_workers/interrupts.py") and name == "handle"


def went_on(doing: Work, within: bool) -> str:
    """Work on after an interrupt, if that can be; return what was wrong."""
    if doing.runtime.closed:
        return ""
    wrong = doing.wrong(within)
    doing.do("updating")
    return wrong + doing.wrong()


def main() -> None:
    faulthandler.enable()
    # Ends with the process that kills and counts.
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    for line in sys.stdin:
        caught = work(json.loads(line))
        gc.collect()
        at = time.monotonic()
        while children() and time.monotonic() < at + GRACE_S:
            time.sleep(0.002)
        tell("caught", **caught, children=len(children()), descriptors=len(descriptors()))


if __name__ == "__main__":
    main()
