"""The contenders: one class for each way to have an array in several processes.

Each does what its documentation recommends, in the quickest way there; doubts are settled in favour
of the peers. Each class imports its own package when it is made.
"""

# ruff: noqa: ARG002, D102 (`Contender` documents the methods and their arguments)

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from typing import Any

import numpy as np
from synk_benchmarks.results import NotOfferedError

from .contender import SHARED_MEMORY, Array, Contender, Pair


class Synk(Contender):
    """This package, as its README shows it."""

    name = package = "synk-shm"
    modules = ("synk_shm",)

    def __init__(self) -> None:
        import synk_shm

        self._shm = synk_shm

    def create(self, count: int) -> Pair:
        return self._shm.empty(count), None

    def share(self, source: Array) -> Pair:
        return self._shm.share(source), None

    def address(self, array: Array, keep: Any) -> Any:
        return self._shm.handle(array)

    def attach(self, address: Any) -> Pair:
        return self._shm.attach(address), None

    def message(self, array: Array, keep: Any) -> Any:
        return array  # multiprocessing sends its handle

    def receive(self, message: Any) -> Pair:
        return message, None


class Stdlib(Contender):
    """multiprocessing.shared_memory: a buffer, on which its user makes an array."""

    name = "SharedMemory"
    modules = ("multiprocessing.shared_memory",)

    def __init__(self) -> None:
        from multiprocessing.shared_memory import SharedMemory

        self._make = SharedMemory
        self._live: set[Any] = set()

    def create(self, count: int) -> Pair:
        memory = self._make(create=True, size=count * 8)
        self._live.add(memory)
        return np.ndarray(count, np.float64, memory.buf), memory

    def destroy(self, keep: Any) -> None:
        self._live.discard(keep)
        keep.close()
        keep.unlink()

    def address(self, array: Array, keep: Any) -> Any:
        return keep.name

    def attach(self, address: Any) -> Pair:
        return self.receive(self._make(address))

    def detach(self, keep: Any) -> None:
        keep.close()

    def message(self, array: Array, keep: Any) -> Any:
        return keep  # a user would have to send shape and dtype, too

    def receive(self, message: Any) -> Pair:
        return np.ndarray(message.size // 8, np.float64, message.buf), message

    def close(self) -> None:
        for memory in list(self._live):
            self.destroy(memory)


class SharedArray(Contender):
    """SharedArray, an extension module in C."""

    name = package = "SharedArray"
    modules = ("SharedArray",)

    def __init__(self) -> None:
        import SharedArray

        self._sa = SharedArray
        self._names = (f"side-by-side.{os.getpid()}.{n}" for n in itertools.count())
        self._live: set[str] = set()

    def create(self, count: int) -> Pair:
        name = next(self._names)
        self._live.add(name)
        return self._sa.create("shm://" + name, count, np.float64), name

    def destroy(self, keep: Any) -> None:
        self._sa.delete("shm://" + keep)
        self._live.discard(keep)

    def address(self, array: Array, keep: Any) -> Any:
        return "shm://" + keep

    def attach(self, address: Any) -> Pair:
        return self._sa.attach(address), None

    def close(self) -> None:
        for name in list(self._live):
            try:
                self.destroy(name)
            except OSError:
                self._live.discard(name)


class RawArray(Contender):
    """multiprocessing.RawArray: an arena that children inherit; it uses freed memory again."""

    name = "RawArray"
    modules = ("multiprocessing.sharedctypes",)

    def __init__(self) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._make = RawArray

    def create(self, count: int) -> Pair:
        return np.frombuffer(self._make("d", count), np.float64), None

    def address(self, array: Array, keep: Any) -> Any:
        raise NotOfferedError("only while a child is started")


class Joblib(Contender):
    """np.memmap on a file in /dev/shm: how joblib shares large arguments with its workers.

    A Pipe does not use joblib's picklers, so the message is what they would send.
    """

    name = package = "joblib"
    modules = ("joblib",)

    def __init__(self) -> None:
        import joblib

        self._joblib = joblib
        self._folder = ""
        self._numbers = itertools.count()

    def create(self, count: int) -> Pair:
        path = self._new_path()
        return np.memmap(path, np.float64, "w+", shape=(count,)), path

    def destroy(self, keep: Any) -> None:
        os.unlink(keep)

    def share(self, source: Array) -> Pair:
        path = self._new_path()
        self._joblib.dump(source, path)
        return self._joblib.load(path, mmap_mode="r"), path

    def address(self, array: Array, keep: Any) -> Any:
        return keep, array.dtype.str, array.offset, array.shape

    def attach(self, address: Any) -> Pair:
        path, dtype, offset, shape = address
        return np.memmap(path, dtype, "r", offset, shape), None

    def close(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _new_path(self) -> str:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="side-by-side.", dir=SHARED_MEMORY)
        return f"{self._folder}/{next(self._numbers)}"


class NumPy(Contender):
    """Ordinary private memory, which a Pipe pickles."""

    name = "NumPy"

    def create(self, count: int) -> Pair:
        return np.empty(count), None

    def share(self, source: Array) -> Pair:
        return source.copy(), None

    def message(self, array: Array, keep: Any) -> Any:
        return array

    def receive(self, message: Any) -> Pair:
        return message, None


OURS = Synk.name
CONTENDERS: dict[str, type[Contender]] = {
    kind.name: kind for kind in (Synk, Stdlib, SharedArray, RawArray, Joblib, NumPy)
}
