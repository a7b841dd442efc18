"""The base of contenders: the acts of a way to have an array of float64 in several processes."""

# ruff: noqa: ARG002 (arguments are there for the contenders that need them)

from __future__ import annotations

import importlib
from typing import Any, Tuple

import numpy as np
from synk_benchmarks.results import NotOfferedError

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where shared memory is, nothing temporary)

Array = Any
# The array, and what is needed to destroy or detach it. Drop the array before that.
Pair = Tuple[Array, Any]


class Contender:
    """A way to have an array in several processes. The metrics time each method.

    ``--only`` takes its name; its user installs `package`, if any, and imports `modules`.
    """

    name = ""
    package = ""
    modules: tuple[str, ...] = ()

    @classmethod
    def missing(cls) -> str:
        """Return why it cannot be measured here; empty if it can."""
        for module in cls.modules:
            try:
                importlib.import_module(module)
            except ImportError:
                return f"pip install {cls.package}" if cls.package else f"no {module} here"
        return ""

    def create(self, count: int) -> Pair:
        """Return a new array with any contents."""
        raise NotImplementedError

    def destroy(self, keep: Any) -> None:
        """Free the array's memory. The array itself has been dropped before."""

    def share(self, source: Array) -> Pair:
        """Return a new array with the contents of a private one."""
        pair = self.create(source.size)
        np.copyto(pair[0], source)
        return pair

    def address(self, array: Array, keep: Any) -> Any:
        """Return the smallest object by which another process can `attach`."""
        raise NotOfferedError("has no address")

    def attach(self, address: Any) -> Pair:
        """Return the array of an address, in another process."""
        raise NotOfferedError("has no address")

    def detach(self, keep: Any) -> None:
        """Free what `attach` made. The array itself has been dropped before."""

    def message(self, array: Array, keep: Any) -> Any:
        """Return the object that its user puts into a Pipe to pass an array."""
        return self.address(array, keep)

    def receive(self, message: Any) -> Pair:
        """Return the array of a message, in another process."""
        return self.attach(message)

    def close(self) -> None:
        """Free what it took. Called in any case, also after an error."""
