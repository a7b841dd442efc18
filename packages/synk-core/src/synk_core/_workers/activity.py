"""The current and the last acts of each rank, in words for errors and warnings."""

from __future__ import annotations

from typing import List, Mapping, Sequence

import numpy as np

from synk_core._rank.functions import LoadedFunction
from synk_core._wire.flight import ActOutcome, ActRecord, Flight, Phase

_WAITING = (Phase.IDLE, Phase.REDUCE, Phase.COLLECTIVE, Phase.END, Phase.FAIL)
"""Phases in which a rank waits for others."""


class Activity:
    """Reads the phase and the last acts of every rank, also of a dead one, from the memory of
    `Flight`; `elsewhere` are the hosts of ranks whose records are not in this one's memory."""

    def __init__(self, room: np.ndarray, size: int, master: int) -> None:
        self.flights = [Flight(room, rank) for rank in range(size)]
        self.workers = [rank for rank in range(size) if rank != master]
        self.functions: Mapping[int, LoadedFunction] = {}
        self.elsewhere: Mapping[int, str] = {}

    def _act_of(self, act: ActRecord) -> str:
        """Return an act in words: ``function 'train'``, ``all_reduce()``."""
        if act.kind != "function":
            return f"{act.kind}()"
        loaded = self.functions.get(act.subject)
        return f"function {loaded.recipe.name!r}" if loaded else f"function {act.subject}"

    def doing(self, rank: int) -> str:
        """Return a rank's present activity, in words that complete "while it was"."""
        if rank in self.elsewhere:
            return f"at work on host {self.elsewhere[rank]}"
        phase, detail = self.flights[rank].phase
        acts = self.flights[rank].acts()
        act = self._act_of(acts[-1]) if acts else "an order"
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

    def history(self, rank: int) -> str:
        """Return the rank's last acts in a line for an error; "" if nothing is known of them."""
        acts = [] if rank in self.elsewhere else self.flights[rank].acts()
        if not acts:
            return ""
        words = []
        for act in acts:
            outcome = act.outcome.name.lower().replace("_", " ")
            done = act.outcome == ActOutcome.DONE
            words.append(self._act_of(act) + ("" if done else f" ({outcome})"))
        return f"The last acts of rank {rank}: {', '.join(words)}"

    def phase(self, rank: int) -> Phase:
        return self.flights[rank].phase[0]

    def late(self) -> List[int]:
        """Return the workers that are busy while others wait; all workers, if none is busy."""
        return [r for r in self.workers if self.phase(r) not in _WAITING] or self.workers

    def describe(self, ranks: Sequence[int], seconds: float, stacks: Mapping[int, str]) -> str:
        """Return a text with the activity and the stack of these ranks."""
        parts = []
        for rank in ranks:
            stack = stacks.get(rank, "its stack could not be read").rstrip()
            parts.append(f"rank {rank} has been {self.doing(rank)} for {seconds:.0f} s:\n{stack}")
        return "\n".join(parts)

    def close(self) -> None:
        """Drop the shared memory."""
        for one in self.flights:
            one.close()
