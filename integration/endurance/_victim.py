"""The program of the kill trials: it works, until it or one of its workers is killed.

Told on standard input what to do, one JSON object a line; tells on standard output what happens,
likewise. Times are those of `time.monotonic`, which all processes share.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any, Callable

import numpy as np
import psutil
import theano
import theano.tensor as T
from _victims import STATES

from synk_theano import Runtime
from synk_theano.testing import child_processes, open_descriptors

GRACE_S = 5.0

_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h


class Dawdle(theano.Op):
    """Gives its vector back, after as many seconds as its largest value says."""

    __props__ = ("way",)

    def __init__(self, way: str) -> None:
        self.way = way

    def make_node(self, x: Any) -> Any:
        x = T.as_tensor_variable(x)
        return theano.Apply(self, [x], [x.type()])

    def perform(self, _node: Any, inputs: Any, outputs: Any) -> None:
        end = time.monotonic() + (inputs[0].max() if inputs[0].size else 0.0)
        if self.way == "sleep":
            time.sleep(max(end - time.monotonic(), 0.0))
        square = np.ones((60, 60))
        while time.monotonic() < end:
            square = square @ square * 1e-2 if self.way == "multiply" else square
        outputs[0][0] = inputs[0].copy()


class Work:
    """Random work on a runtime; a method for each state that it can be killed in."""

    def __init__(self, runtime: Runtime, rng: random.Random) -> None:
        self.runtime = runtime
        self.rng = rng
        self.called = 0.0
        self.x = T.dvector("x")
        self.s = theano.shared(np.zeros(rng.randint(1, 60_000)), name="s")
        self.kept: dict[str, Any] = {}

    def call(self, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Every call of the runtime goes through here: it is noted when it began."""
        self.called = time.monotonic()
        return do(*args, **kwargs)

    def starting(self) -> None:
        self.call(self.runtime.distribute)
        # For those who are killed when they have just started.
        self.call(self.runtime.collectives.get_shapes, self.s)

    def computing(self) -> None:
        if "f" not in self.kept:
            way = self.rng.choice(["sleep", "multiply", "spin"])
            out = Dawdle(way)(self.x)
            self.kept["f"] = self.runtime.function([self.x], (out, "gather"), name=way)
        # The master's own rows take no time: it waits for the others'.
        size, master = self.runtime.size, self.runtime.master
        seconds = np.array([0.0 if r == master else self.rng.uniform(0, 1) for r in range(size)])
        self.call(self.kept["f"], seconds, num_slices=self.rng.choice([1, 1, 3]))

    def updating(self) -> None:
        if "u" not in self.kept:
            updates = [(self.s, self.s + self.x.sum())]
            self.kept["u"] = self.runtime.function([self.x], (self.x.sum(), "sum"), updates=updates)
        x = np.ones(self.rng.randint(1, 200_000))
        self.call(self.kept["u"], x, num_slices=self.rng.choice([1, 1, 1, 4]))

    def collective(self) -> None:
        collectives = self.runtime.collectives
        name = self.rng.choice(["broadcast", "all_reduce", "reduce", "gather", "get_digests"])
        self.call(getattr(collectives, name), self.s)

    def stepping(self) -> None:
        if "u" not in self.kept:
            self.updating()
        delayed = self.runtime.delayed
        acts = [
            self.kept["u"].delayed(np.ones(self.rng.randint(1, 50_000))),
            delayed.all_reduce(self.s),
        ]
        self.call(self.runtime.step, *acts * self.rng.randint(1, 3))

    def distributing(self) -> None:
        variable = theano.shared(np.ones(self.rng.randint(1, 300_000)), name="fresh")
        for _ in range(self.rng.randint(1, 3)):
            out = (self.x.mean() * self.rng.random() + variable.sum(), "avg")
            self.kept["fresh"] = self.runtime.function([self.x], out)
        self.call(self.runtime.distribute)

    def growing(self) -> None:
        if "data" not in self.kept:
            self.kept["data"] = self.runtime.data(np.zeros(1))
            self.kept["sum"] = self.runtime.function([self.x], (self.x.sum(), "sum"))
        data = self.kept["data"]
        data.set_length(1 if len(data) > 1_000_000 else 2 * len(data) + self.rng.randint(0, 9))
        data[...] = 1.0
        self.call(self.kept["sum"], data)

    def idle(self) -> None:
        time.sleep(self.rng.uniform(0.1, 0.4))
        self.call(self.runtime.collectives.get_shapes, self.s)

    def closing(self) -> None:
        """Ends the work, at about the time of the kill."""
        self.call(self.runtime.collectives.get_shapes, self.s)
        tell("at work")
        time.sleep(self.rng.uniform(0.0, 0.6))
        self.call(self.runtime.close)
        raise Finished

    def mixed(self) -> None:
        names = [name for name in STATES if name not in ("closing", "mixed")]
        getattr(self, self.rng.choice(names))()


class Finished(Exception):
    """The runtime is closed, and nothing was raised."""


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **values}), flush=True)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Start a runtime and work until something is raised; tell what it was."""
    rng = random.Random(job["seed"])
    tell("starting")
    runtime = Runtime(job["size"], False, job["master"], backend=job["backend"])
    doing = Work(runtime, rng)
    ranks = [rank for rank in range(job["size"]) if rank != job["master"]]
    tell(
        "started",
        workers={str(rank): pid for rank, pid in zip(ranks, runtime.worker_pids)},
    )
    error: BaseException
    try:
        if job["state"] == "starting":
            doing.starting()
        getattr(doing, job["state"])()
        tell("at work")
        while True:
            getattr(doing, job["state"])()
    except BaseException as raised:
        at, error = time.monotonic(), raised
    return {
        "caught_at": at,
        "called_at": doing.called,
        "type": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "signal": getattr(error, "signal", None),
        "doing": getattr(error, "doing", None),
        "message": str(error)[:2000],
        "closed": runtime.closed,
    }


def main() -> None:
    faulthandler.enable()
    # Without whoever kills and counts there is nothing to work for.
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    for line in sys.stdin:
        caught = work(json.loads(line))
        gc.collect()
        at = time.monotonic()
        while child_processes() and time.monotonic() < at + GRACE_S:
            time.sleep(0.002)
        tell(
            "caught",
            **caught,
            alone_s=time.monotonic() - caught["caught_at"],
            children=len(child_processes()),
            descriptors=open_descriptors(),
            threads=threading.active_count(),
            rss=psutil.Process(os.getpid()).memory_info().rss,
        )


if __name__ == "__main__":
    main()
