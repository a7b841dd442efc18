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
from typing import Any, Callable, Optional

import numpy as np
import theano
import theano.tensor as T
from _victims import STATES

from synk_core import Runtime
from synk_testing import children, descriptors

GRACE_S = 5.0
PATIENCE_S = 60.0
"""Seconds to wait for the interrupt, when nothing is left to do."""

Change = Callable[[np.ndarray, np.ndarray], Any]
"""From the values of `s` and `count` before a call to those after it. For `s` it may return None
(anything is right), or a function that checks the values. The first axis is that of the ranks.
"""

_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h


class Dawdle(theano.Op):
    """The identity of vectors; it takes as many seconds as the largest value."""

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
        self.count = theano.shared(0, name="count")
        self.kept: dict[str, Any] = {}

    def call(self, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something of the runtime, and note when the call began."""
        self.called = time.monotonic()
        return do(*args, **kwargs)

    def expect(self, change: Optional[Change]) -> None:
        """Note what the next call does to `s` and `count` on all ranks; None: nothing."""

    def starting(self) -> None:
        self.call(self.runtime.distribute)
        # For ranks that are killed when they have just started.
        self.call(self.runtime.collectives.get_shapes, self.s)

    def computing(self) -> None:
        if "f" not in self.kept:
            way = self.rng.choice(["sleep", "multiply", "spin"])
            out = Dawdle(way)(self.x)
            self.kept["f"] = self.runtime.function([self.x], (out, "gather"), name=way)
        # The master's own rows take no time: it waits for the other ranks.
        size, master = self.runtime.size, self.runtime.master
        seconds = np.array([0.0 if r == master else self.rng.uniform(0, 1) for r in range(size)])
        self.call(self.kept["f"], seconds, num_slices=self.rng.choice([1, 1, 3]))

    def updating(self) -> None:
        if "u" not in self.kept:
            updates = [(self.s, self.s + self.x.sum()), (self.count, self.count + 1)]
            self.kept["u"] = self.runtime.function([self.x], (self.x.sum(), "sum"), updates=updates)
        x = np.ones(self.rng.randint(1, 200_000))
        slices = self.rng.choice([1, 1, 1, 4])
        self.expect(lambda s, count: (added(s, len(x)) if slices == 1 else None, count + 1))
        self.call(self.kept["u"], x, num_slices=slices)

    def collective(self) -> None:
        collectives, master = self.runtime.collectives, self.runtime.master
        name = self.rng.choice(["broadcast", "all_reduce", "reduce", "gather"])

        def change(s: np.ndarray, count: np.ndarray) -> Any:
            result = s.copy()
            if name == "broadcast":
                result[:] = s[master]
            elif name == "all_reduce":
                result[:] = s.mean(axis=0)
            elif name == "reduce":
                result[master] = s.mean(axis=0)
            return result, count

        self.expect(change)
        self.call(getattr(collectives, name), self.s)

    def stepping(self) -> None:
        if "u" not in self.kept:
            self.updating()
        delayed = self.runtime.delayed
        x, times = np.ones(self.rng.randint(1, 50_000)), self.rng.randint(1, 3)
        acts = [self.kept["u"].delayed(x), delayed.all_reduce(self.s)]

        def change(s: np.ndarray, count: np.ndarray) -> Any:
            mean = s.mean(axis=0) + times * len(x) / self.runtime.size
            return np.broadcast_to(mean, s.shape), count + times

        self.expect(change)
        self.call(self.runtime.step, *acts * times)

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
        """End the work, at about the time of the kill."""
        self.call(self.runtime.collectives.get_shapes, self.s)
        tell("at work")
        time.sleep(self.rng.uniform(0.0, 0.6))
        self.close()
        raise Finished

    def close(self) -> None:
        self.call(self.runtime.close)

    def mixed(self) -> None:
        names = [name for name in STATES if name not in ("closing", "mixed")]
        getattr(self, self.rng.choice(names))()


class Watched(Work):
    """Work that may be interrupted: it notes which values all ranks have, or may have.

    Attributes:
        before: the values of `s` and `count` on all ranks before the call that was begun last.
        after: what they are after it: any of these.
    """

    def __init__(self, runtime: Runtime, rng: random.Random) -> None:
        super().__init__(runtime, rng)
        self._change: Optional[Change] = None
        size, length = runtime.size, self.s.get_value(borrow=True).size
        self.before = np.zeros((size, length)), np.zeros(size, int)
        self.after = [self.before]

    def expect(self, change: Optional[Change]) -> None:
        self._change = change

    def call(self, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        change, self._change = self._change, None
        if do != self.runtime.close:
            # Reading changes nothing: an interrupt here leaves the same values.
            self.before = self.values()
            self.after = [self.before]
        done = self.before if change is None else change(*self.before)
        try:
            self.after = [self.before, done]
            result = super().call(do, *args, **kwargs)
            self.after = [done]
            return result
        except KeyboardInterrupt as error:
            # Raised by the call itself, not between it and this line: then it has not happened.
            within = error.__traceback__ and error.__traceback__.tb_next
            if within and within.tb_next:
                self.after = [self.before]
            raise

    def close(self) -> None:
        super().close()
        time.sleep(PATIENCE_S)

    def values(self) -> Any:
        """Return `s` and `count` of all ranks, with an axis for the rank in front."""
        gather = self.runtime.collectives.gather
        s, count = gather(self.s), gather(self.count)
        return s.reshape(self.runtime.size, -1), count.ravel()

    def wrong(self) -> str:
        """Say what some rank has that it should not; nothing if all is right."""
        s, count = self.values()
        for expected_s, expected_count in self.after:
            if np.array_equal(count, expected_count) and agrees(s, expected_s):
                return ""
        counts = [one.tolist() for _, one in self.after]
        return f"calls that have happened, by rank: {count.tolist()}, expected {counts}; s: {s!r}"


def added(s: np.ndarray, total: int) -> Callable[[np.ndarray], bool]:
    """Return a check that each rank added one number to all its values, `total` over the ranks."""

    def is_right(now: np.ndarray) -> bool:
        each = (now - s).T
        right = np.isclose(each[0].sum(), total, rtol=1e-12, atol=0)
        return bool(right) and np.allclose(each, each[0], rtol=1e-9)

    return is_right


def agrees(now: np.ndarray, expected: Any) -> bool:
    """Return whether a value is as expected: an array, or a check; None is met by anything."""
    if callable(expected):
        return bool(expected(now))
    return expected is None or np.allclose(now, expected, rtol=1e-12, atol=0)


class Finished(Exception):
    """The runtime is closed, and nothing was raised."""


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **values}), flush=True)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Start a runtime and work until something is raised; return what it was."""
    rng = random.Random(job["seed"])
    runtime: Optional[Runtime] = None
    error: BaseException
    tell("starting")
    try:
        runtime = Runtime(job["size"], False, job["master"], backend=job["backend"])
        doing = (Watched if job["killed"] == "interrupted" else Work)(runtime, rng)
        ranks = [rank for rank in range(job["size"]) if rank != job["master"]]
        pids = dict(zip(map(str, ranks), runtime.worker_pids))
        tell("started", workers=pids)
        if job["state"] == "starting":
            doing.starting()
        getattr(doing, job["state"])()
        tell("at work")
        while True:
            getattr(doing, job["state"])()
    except BaseException as raised:
        at, error = time.monotonic(), raised
    told = {
        "caught_at": at,
        "type": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "signal": getattr(error, "signal", None),
        "message": str(error)[:2000],
        "closed": runtime is None or runtime.closed,
    }
    if runtime is not None:
        told["called_at"] = doing.called
        if isinstance(doing, Watched) and isinstance(error, KeyboardInterrupt):
            told.update(went_on(doing))
    return told


def went_on(doing: Watched) -> dict[str, Any]:
    """Work on after an interrupt, and close: return what was wrong."""
    told = {"wrong": ""}
    if not doing.runtime.closed:
        told["wrong"] = doing.wrong()
        doing.updating()
        told["wrong"] += doing.wrong()
    doing.runtime.close()
    return {**told, "closed": doing.runtime.closed}


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
