"""Arrays in shared memory as one rank has them mapped."""

from __future__ import annotations

from typing import Any, Dict, Iterable

import numpy as np

import synk_shm

from ._messages import ArrayRef


class ArrayCache:
    """Mapped arrays by key; a key is mapped anew when its handle changes."""

    def __init__(self) -> None:
        self._held: Dict[int, Any] = {}

    def get(self, ref: ArrayRef) -> np.ndarray:
        held = self._held.get(ref.key)
        if held is None or held[0] != ref.handle:
            held = self._held[ref.key] = (ref.handle, synk_shm.attach(ref.handle))
        array: np.ndarray = held[1]
        return array

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._held.pop(key, None)

    def clear(self) -> None:
        self._held.clear()
