"""Processes of multiprocessing that answer through pipes and share a barrier."""

from __future__ import annotations

import multiprocessing
from time import perf_counter
from typing import Any, List

import numpy as np

TIMEOUT_S = 60.0
BARRIERS = 50


class Peers:
    """As many processes as ranks, including this one; a context manager.

    Args:
        size: Number of processes. With 1, no other process is started.
    """

    def __init__(self, size: int) -> None:
        # Forked before any runtime exists: they import nothing, and inherit nothing of it.
        context = multiprocessing.get_context("fork")
        self.size = size
        self._barrier = context.Barrier(size, timeout=TIMEOUT_S)
        self._ends: List[Any] = []
        self._processes: List[Any] = []
        for _ in range(size - 1):
            ours, theirs = context.Pipe()
            self._ends.append(ours)
            arguments = (theirs, self._barrier, list(self._ends))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)

    def __enter__(self) -> Peers:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(TIMEOUT_S)

    def round_trip(self) -> None:
        """Send a word to each process, and wait for all answers."""
        self._send("take", None)
        self._answers()

    def scatter(self, array: Any) -> None:
        """Send each process its share of the rows, pickled, and wait until all have them."""
        shares = np.array_split(array, self.size)
        for end, share in zip(self._ends, shares[1:]):
            end.send(("take", share))
        self._answers()

    def all_reduce(self, array: Any) -> Any:
        """Receive an equally large array from each process, add them, and send the sum to all."""
        self._send("add", array.shape[0])
        total = array.copy()
        for end in self._ends:
            total += end.recv()
        for end in self._ends:
            end.send(total)
        self._answers()
        return total

    def barrier(self) -> float:
        """Return the seconds of one barrier of all processes."""
        self._send("wait", BARRIERS + 1)
        self._barrier.wait()
        begin = perf_counter()
        for _ in range(BARRIERS):
            self._barrier.wait()
        return (perf_counter() - begin) / BARRIERS

    def _send(self, word: str, value: Any) -> None:
        for end in self._ends:
            end.send((word, value))

    def _answers(self) -> List[Any]:
        return [end.recv() for end in self._ends]


def _serve(end: Any, barrier: Any, inherited: List[Any]) -> None:
    for other in inherited:
        other.close()  # otherwise none of these pipes would ever close
    while True:
        try:
            word, value = end.recv()
        except EOFError:
            return
        if word == "wait":
            for _ in range(value):
                barrier.wait()
            continue
        if word == "add":
            end.send(np.ones(value, "float32"))
            end.recv()
        end.send(None)
