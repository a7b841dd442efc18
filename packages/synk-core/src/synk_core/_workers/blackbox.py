"""The flight records of all ranks, as the master reads them: for errors, and to write to a file."""

from __future__ import annotations

import datetime as dt
import logging
import os
import platform
import sys
import traceback
from time import perf_counter_ns
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from synk_core import flight
from synk_core._rank.functions import LoadedFunction
from synk_core._text import text_of
from synk_core._watch.flight import ActOutcome, ActRecord, Flight, Phase

_logger = logging.getLogger(__name__)

_OUTCOMES = {
    ActOutcome.UNDER_WAY: "under way",
    ActOutcome.DONE: "done",
    ActOutcome.FAILED: "failed",
    ActOutcome.UNDONE: "undone",
}


class BlackBox:
    """Reads the current phase and the last acts of every rank.

    Args:
        room: int64 vector into which the ranks write; see `_watch.flight`.
        size: number of ranks.
        master: the rank of this process.

    Attributes:
        functions: functions by number, for their names.
        elsewhere: names of the hosts of ranks whose records are not in this one's memory.
        host: of this process, if there are several; else "".
    """

    def __init__(self, room: np.ndarray, size: int, master: int) -> None:
        self.flights = [Flight(room, rank) for rank in range(size)]
        self._master = master
        self.functions: Mapping[int, LoadedFunction] = {}
        self._seen: Optional[List[Dict[str, Any]]] = None
        self.elsewhere: Mapping[int, str] = {}
        self.host = ""

    def act_of(self, act: ActRecord) -> str:
        """Return an act in words: ``function 'train'``, ``all_reduce()``."""
        if act.kind != "function":
            return f"{act.kind}()"
        loaded = self.functions.get(act.subject)
        return f"function {loaded.recipe.name!r}" if loaded else f"function {act.subject}"

    def doing(self, rank: int) -> str:
        """Return what a rank does now, in words that complete "while it was"."""
        if rank in self.elsewhere:
            return f"at work on host {self.elsewhere[rank]}"
        phase, detail = self.flights[rank].phase
        last = self.flights[rank].last()
        act = "an order" if last is None else self.act_of(last)
        return {
            Phase.START: "starting",
            Phase.IDLE: "waiting for an order",
            Phase.TAKE_IN: "taking in what is new",
            Phase.DISTRIBUTE: "taking over functions and variables",
            Phase.COMPILE: "compiling functions",
            Phase.COPY: f"copying rows for {act}",
            Phase.COMPUTE: f"computing {act}",
            Phase.SLICE: f"computing slice {detail} of {act}",
            Phase.REDUCE: f"in the reduction of {act}",
            Phase.COLLECTIVE: f"in {act}",
            Phase.DEVICE: f"waiting for its device after {act}",
            Phase.END: f"waiting until all ranks are done with {act}",
            Phase.CLOSE: "closing",
            Phase.FAIL: f"giving up {act}",
        }[phase]

    def forget(self) -> None:
        """Forget what `look` has read: the order went on."""
        self._seen = None

    def look(self) -> None:
        """Read what all ranks are doing now, before they are stopped; the first call in an order
        counts."""
        if self._seen is None:
            self._seen = [self._look_at(rank) for rank in range(len(self.flights))]

    def _look_at(self, rank: int) -> Dict[str, Any]:
        now = perf_counter_ns()
        records = [
            {
                "order": act.serial,
                "act": self.act_of(act),
                "began_s": (act.began_ns - now) / 1e9,
                "seconds": (act.ended_ns - act.began_ns) / 1e9 if act.ended_ns else None,
                "rows": act.rows,
                "bytes": act.nbytes,
                "outcome": _OUTCOMES[act.outcome],
            }
            for act in self.flights[rank].acts()
        ]
        phase, _ = self.flights[rank].phase
        doing = self.doing(rank)
        return {"rank": rank, "phase": phase.name.lower(), "doing": doing, "records": records}

    def write(
        self, error: BaseException, pids: Sequence[int], stacks: Mapping[int, str]
    ) -> Optional[str]:
        """Write a file of what was read; return its path, or None if it cannot be written.

        Args:
            error: the reason.
            pids: process ids of all ranks, in order.
            stacks: Python stacks by rank, as far as they are known.
        """
        self.look()
        ranks = [{**seen, "pid": pid} for seen, pid in zip(self._seen or [], pids)]
        self._seen = None
        content = {
            "version": flight.VERSION,
            "when": dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds"),
            "program": list(sys.argv),
            "pid": os.getpid(),
            "host": self.host,
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
            "size": len(self.flights),
            "master": self._master,
            "error": {
                "type": type(error).__name__,
                "message": text_of(error),
                "rank": getattr(error, "rank", None),
                "doing": getattr(error, "doing", None),
                "traceback": getattr(error, "traceback", "")
                or "".join(traceback.format_exception(type(error), error, error.__traceback__)),
            },
            "ranks": ranks,
            "stacks": {str(rank): text for rank, text in stacks.items()},
        }
        try:
            return str(flight.write(content))
        except (OSError, ValueError) as problem:
            # A full disk, maybe: the user has to see the first failure, not this one.
            _logger.debug("no flight record was written: %s", problem)
            return None

    def close(self) -> None:
        """Drop the shared memory."""
        for one in self.flights:
            one.close()
