"""Requests of MPI that are not done yet, and the memory that they use."""

from __future__ import annotations

import ctypes
from typing import Any


class Outstanding:
    """Requests with their buffers, which must not be freed before MPI has done with them."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, request: Any, *buffers: Any) -> None:
        """Keep the buffers of a request until it is done."""
        self._held.append((request, *buffers))

    def prune(self) -> None:
        """Let the buffers of all requests go that are done."""
        if self._held:
            self._held = [held for held in self._held if not held[0].Test()]

    def keep(self) -> None:
        """Keep what is not done until the process ends: MPI may still write there."""
        while self._held:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._held.pop()))
