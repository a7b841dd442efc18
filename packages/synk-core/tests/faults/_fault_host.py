"""A program that is a master, told by the tests what to do.

One line of JSON in, one or two out: a case first says "begun", with the processes that there are,
and then what has come of it. Whatever hangs here is killed by the test.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
import warnings
from typing import Any, Callable, Dict, List, Optional

import _fault_inflict as inflict
from _fault_bench import Bench, verdict

import synk_shm
from synk_core import Runtime
from synk_core._master import controller
from synk_core._watch.flight import Phase
from synk_core._workers.interrupts import LATER
from synk_testing import Leftovers

LISTEN_S = 20.0
"""Seconds in which workers have to listen when they are told to stop; a busy machine needs them."""

SETTLE_S = 3.0
"""For what a closed runtime had to be gone."""


class Host:
    """Performs what it is told.

    What it and its workers print goes to standard error: standard output is for answers.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._bench: Optional[Bench] = None
        self._options: Dict[str, Any] = {}
        synk_shm.empty(1)  # what this process keeps for good
        self._look = Leftovers(f"{os.environ['TMPDIR']}/*", mine)

    def serve(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            try:
                answer = getattr(self, order.pop("do"))(**order)
            except BaseException:
                answer = {"broken": traceback.format_exc()}
            self._say(answer)

    def _say(self, answer: Dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def prepare(self, **options: Any) -> Dict[str, Any]:
        """Open a runtime with what the cases need."""
        self._open(options)
        return {"ready": self._bench is not None and self._bench.call()}

    def _open(self, options: Dict[str, Any]) -> None:
        self._options = options
        self._bench = Bench(Runtime(use_gpu=False, **options))

    def ping(self) -> Dict[str, Any]:
        """Whether all is well here."""
        bench = self._bench
        if bench is None:
            return {"well": True}
        bench.reset()
        return {"well": bench.call() and bench.values() == bench.after("compute")}

    def run(self, case: Dict[str, Any]) -> Dict[str, Any]:
        """A case in a runtime that is there."""
        bench = self._bench
        assert bench is not None
        inflict.forget_mark()
        before, after = bench.reset(), bench.after(case["act"])
        self._say(self._begun())
        threads = self._lay(bench, case)
        answer = self._observe(lambda: self._act(bench, case), threads)
        if not bench.runtime.closed:
            answer["ranks"] = verdict(bench.values(), before, after)
            answer["again"] = self._try_again(bench, answer)
        else:
            before, after = bench.master_of(before), bench.master_of(after)
            answer["master"] = verdict(bench.own_values(), before, after)
            del bench
            answer["left"] = self._end()
        return answer

    def _lay(self, bench: Bench, case: Dict[str, Any]) -> List[threading.Thread]:
        """Have the fault happen; threads that work for it."""
        place, deed = case.get("place"), case["deed"]
        worker = (case["who"] == "worker") and deed is not None
        if case["act"] == "close":
            setattr(controller, "TELL_TIMEOUT_S", LISTEN_S)  # noqa: B010 - for mypy it is constant
        if worker:
            bench.arm(case["rank"], inflict.Place(*place), deed, case["argument"])
            inflict.tell_laid()
            if case["act"] == "compute" and place[0] == Phase.IDLE:
                inflict.wait_until(inflict.read_mark)
                time.sleep(0.05)
        elif deed is not None:
            act = inflict.DEEDS[inflict.NAMES.index(deed)]
            argument = case["argument"]
            inflict.lie_in_ambush(inflict.Place(*place), lambda: act(argument), now=True)
        return self._start_strikes(case)

    def _start_strikes(self, case: Dict[str, Any]) -> List[threading.Thread]:
        if not case.get("strikes"):
            return []
        striking = threading.Thread(target=inflict.strike, args=(inflict.CTRL_C, case["strikes"]))
        striking.start()
        return [striking]

    def _act(self, bench: Bench, case: Dict[str, Any]) -> bool:
        if case.get("still"):
            # Nothing is under way while it strikes.
            inflict.mark()
            time.sleep(20)
        act = {"compute": bench.call, "reduce": bench.call}.get(case["act"])
        return bool((act or getattr(bench, case["act"]))())

    def fill(self, act: str) -> Dict[str, Any]:
        """An act while not a page is left in /dev/shm; then it is let go."""
        bench = self._bench
        assert bench is not None
        before, after = bench.reset(), bench.after(act)
        inflict.forget_mark()
        full = fill_shared_memory()
        answer = self._observe(lambda: self._act(bench, {"act": act}), [])
        full.clear()
        answer["ranks"] = verdict(bench.values(), before, after)
        answer["again"] = bench.reset() == before and self._act(bench, {"act": act})
        return answer

    def start_full(self, options: Dict[str, Any]) -> Dict[str, Any]:
        """Open a runtime while not a page is left in /dev/shm, call a function, and close it."""
        full = fill_shared_memory()

        def act() -> bool:
            with Runtime(use_gpu=False, **options) as runtime:
                runtime.distribute()
                return Bench(runtime).call()

        answer = self._observe(act, [])
        full.clear()
        answer["left"] = self._end()
        return answer

    def _begun(self) -> Dict[str, Any]:
        assert self._bench is not None
        runtime = self._bench.runtime
        watchdog = runtime._controller._pool.watchdog_pid
        return {"pids": list(runtime.worker_pids), "watchdog": watchdog, **family()}

    def _observe(self, act: Callable[[], bool], threads: List[threading.Thread]) -> Dict[str, Any]:
        """What comes of an act, and when."""
        answer: Dict[str, Any] = {"error": None, "right": None}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            began = time.monotonic()
            try:
                try:
                    answer["right"] = act()
                    ended = time.monotonic()
                except BaseException:
                    ended = time.monotonic()
                    raise
                finally:
                    for thread in threads:
                        thread.join()
                # Ctrl-C in what cannot be undone any more comes with whatever is called next.
                LATER.at_the_next_chance()
            except BaseException as error:
                answer["error"] = described(error)
        inflicted = inflict.read_mark()
        answer["call_s"] = ended - began
        answer["seconds"] = None if inflicted is None else ended - max(inflicted, began)
        answer["inflicted"] = inflicted is not None
        answer["warnings"] = [
            [type(one.message).__name__, str(one.message)]
            for one in told
            if type(one.message).__module__.startswith("synk")
        ]
        return answer

    def _try_again(self, bench: Bench, answer: Dict[str, Any]) -> bool:
        """Whether everything works in the same runtime; unequal replicas are to be refused."""
        if not self._options["atomic"] and answer["error"] is not None:
            try:
                answer["call_after"] = bench.call()
            except Exception as error:
                answer["call_after"] = type(error).__name__
        bench.reset()
        acts = (bench.gather, bench.copy, bench.slice, bench.step, bench.distribute, bench.grow)
        return all(act() for act in acts)

    def _end(self) -> Dict[str, List[str]]:
        """Let go of a closed runtime; what is left all the same."""
        self._bench = None
        return self._look.since(SETTLE_S)

    def end(self) -> Dict[str, Any]:
        """Close what is open."""
        if self._bench is not None:
            self._bench.runtime.close()
        return {"left": self._end()}


def described(error: BaseException) -> Dict[str, Any]:
    """An exception in plain values."""
    names = ("rank", "exitcode", "signal", "doing", "ranks", "stacks", "traceback", "others")
    found = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {
        "type": type(error).__name__,
        "family": [kind.__name__ for kind in type(error).__mro__],
        "message": str(error),
        "cause": None if error.__cause__ is None else type(error.__cause__).__name__,
        "where": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        **found,
    }


def mine() -> List[str]:
    """What this process has in shared memory."""
    return [info.name for info in synk_shm.list() if info.mine]


def fill_shared_memory() -> List[Any]:
    """Arrays that leave not a page of /dev/shm."""
    kept: List[Any] = []
    for size in (1 << 20, 1 << 12):
        try:
            while True:
                kept.append(synk_shm.full(size, 1, "u1"))
        except synk_shm.ShmFullError:
            pass
    return kept


def family() -> Dict[str, str]:
    """By what the entries of this process's shared memory are recognized."""
    kept = synk_shm.empty(1)
    name = mine()[0]
    del kept
    return {"family": name.split(".")[1]}


if __name__ == "__main__":
    Host().serve()
