"""Arrays in shared memory as one rank has them mapped, and the reading of rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Dict, Iterable, Optional

import numpy as np

import synk_shm

from ._messages import ArrayRef

PIECE = 1 << 21
"""Bytes of rows that are worth a thread of their own."""


class ArrayCache:
    """Mapped arrays by key; a key is mapped anew when its handle changes.

    Args:
        threads: with how many of them rows are read.
    """

    def __init__(self, threads: int = 1) -> None:
        self._held: Dict[int, Any] = {}
        self._threads = threads
        self._pool: Optional[ThreadPoolExecutor] = None

    def get(self, ref: ArrayRef) -> np.ndarray:
        held = self._held.get(ref.key)
        if held is None or held[0] != ref.handle:
            held = self._held[ref.key] = (ref.handle, synk_shm.attach(ref.handle))
        array: np.ndarray = held[1]
        return array

    def take(self, array: np.ndarray, index: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copy the rows of `array` that `index` names to `out`; return that.

        Args:
            index: int64 vector; its range has been checked.
        """
        pieces = min(self._threads, out.nbytes // PIECE)
        if pieces < 2:
            # "clip" spares numpy a second buffer.
            return array.take(index, 0, out, "clip")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "synkhronos rows")
        cuts = [len(index) * i // pieces for i in range(pieces + 1)]
        copies = [
            self._pool.submit(array.take, index[start:stop], 0, out[start:stop], "clip")
            for start, stop in zip(cuts, cuts[1:])
        ]
        # Whatever interrupts: the room is used again only when nobody writes to it any more.
        try:
            for copy in copies:
                copy.result()
        finally:
            wait(copies)
        return out

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._held.pop(key, None)

    def clear(self) -> None:
        self._held.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
