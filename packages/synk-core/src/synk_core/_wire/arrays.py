"""Make arrays in shared memory (master), map them (each rank), and read their rows."""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Callable, Dict, Iterable, List, Optional, Union

import numpy as np

import synk_shm
from synk_comm.processes import available_cores
from synk_core.exceptions import SharedMemoryFull

from .messages import ArrayRef

_logger = logging.getLogger(__name__)

PIECE = 1 << 21
"""Bytes of rows for which a thread of a pool pays."""

NEW_THREADS_PIECE = 1 << 23
"""Bytes of rows for which a thread pays that begins and ends with the copy."""

MOST_THREADS = 8
"""Threads for reading rows; more of them do not read faster."""


def may_be_opened() -> bool:
    """Return whether other processes of this user may open this one's descriptors, as they do for
    memory without a name: the kernel protects those of some programs."""
    try:
        return os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:
        return False


def new_array(size: int, dtype: np.dtype, what: str, named: bool = True) -> np.ndarray:
    """Return a flat array of zeros in shared memory: in /dev/shm, or in a file in memory without a
    name, if /dev/shm has no room (containers give it 64 MB). Not `named`, it has no name if
    possible: the kernel frees it with this process. `what` is its purpose, in words."""
    refused: Dict[str, Any] = {}
    for place in ("shm", "memfd") if named else ("memfd", "shm"):
        try:
            return synk_shm.empty((size,), dtype, backend=place)
        except (synk_shm.ShmError, ValueError) as error:
            refused[place] = error.with_traceback(None)  # which would keep this frame
            _logger.debug("%s: not in a segment of kind %s: %s", what, place, _reason(error))
    room = "ask for less at a time (of a function's inputs: by batch=)"
    if isinstance(refused["memfd"], synk_shm.ShmFullError):
        cure = f"{room}, or free memory; in a container, raise its limit (docker run --memory=)"
    elif isinstance(refused["shm"], synk_shm.ShmFullError):
        cure = f"make /dev/shm larger (docker run --shm-size=), or {room}"
    else:
        raise refused["shm"]
    raise SharedMemoryFull(
        next(e.errno for e in (refused["memfd"], refused["shm"]) if isinstance(e, OSError)),
        f"{what}: {_reason(refused['shm'])}; the other place (memfd) failed too: "
        f"{_reason(refused['memfd'])}; {cure}; `synkhronos clean` removes leftovers of killed "
        f"programs",
    ) from refused["memfd"]


def _reason(error: Exception) -> str:
    """Return the text of an error of synk_shm without the cures for its direct users."""
    return (getattr(error, "strerror", None) or str(error)).partition(";")[0]


def copy_rows(array: np.ndarray, rows: Union[slice, np.ndarray], out: np.ndarray) -> None:
    """Copy rows (a slice, or an int64 vector within range) of an array, or of a memory map, to
    `out`; many of them in several threads. Converts their dtype as an assignment does."""
    pieces = out.nbytes // NEW_THREADS_PIECE
    if pieces > 1:
        pieces = min(pieces, MOST_THREADS, len(out), available_cores())
    if pieces > 1:
        with ThreadPoolExecutor(pieces, "synkhronos rows") as pool:
            copy_in_pieces(pool, pieces, array, rows, out)
    else:
        _copy(array, rows, out)


def copy_in_pieces(
    pool: ThreadPoolExecutor,
    count: int,
    array: np.ndarray,
    rows: Union[slice, np.ndarray],
    out: np.ndarray,
) -> None:
    """Copy rows as `copy_rows` does, in `count` pieces at a time; in this thread if no other can
    begin, as at the end of a program."""
    if isinstance(rows, slice):
        array, rows = array[rows], slice(0, len(out))
    cuts = [len(out) * i // count for i in range(count + 1)]
    copies: List[Future[None]] = []
    try:
        for span in map(slice, cuts, cuts[1:]):
            piece = array, span if isinstance(rows, slice) else rows[span], out[span]
            try:
                copies.append(pool.submit(_copy, *piece))
            except RuntimeError:
                pool.shutdown()  # it may have taken the piece all the same
                _copy(*piece)
        for copy in copies:
            copy.result()
    finally:
        wait(copies)  # also after an interrupt no thread writes to `out` any more


def _copy(array: np.ndarray, rows: Union[slice, np.ndarray], out: np.ndarray) -> None:
    if isinstance(rows, slice):
        out[...] = array[rows]
        return
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype == out.dtype:
        array.take(rows, 0, out, "clip")  # spares NumPy a second buffer
    else:
        out[...] = array[rows]  # of such arrays, NumPy's take copies the whole array first


class ArrayCache:
    """Mapped arrays by key, which `attach` maps anew when the handle of a key changes."""

    def __init__(self, threads: int = 1) -> None:
        self.attach: Callable[[ArrayRef], np.ndarray] = lambda ref: synk_shm.attach(ref.handle)
        self._held: Dict[int, Any] = {}
        self._threads = threads
        self._pool: Optional[ThreadPoolExecutor] = None

    def get(self, ref: ArrayRef) -> np.ndarray:
        held = self._held.get(ref.key)
        if held is None or held[0] != ref.handle:
            held = self._held[ref.key] = (ref.handle, self.attach(ref))
        array: np.ndarray = held[1]
        return array

    def take(self, array: np.ndarray, index: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copy rows (an int64 vector within range) of an array to `out`; return that."""
        pieces = min(self._threads, out.nbytes // PIECE)
        if pieces < 2:
            _copy(array, index, out)
            return out
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "synkhronos rows")
        copy_in_pieces(self._pool, pieces, array, index, out)
        return out

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._held.pop(key, None)

    def close(self) -> None:
        self._held.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
