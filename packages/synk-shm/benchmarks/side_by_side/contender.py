"""The base of contenders: the acts of a way to have an array in several processes.

All arrays are one-dimensional float64.
"""

# ruff: noqa: ARG002 (arguments are there for the contenders that need them)

from __future__ import annotations

import importlib
from typing import Any, Callable, Tuple

import numpy as np
from synk_benchmarks import contender
from synk_benchmarks.contender import NotOfferedError

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where shared memory is, nothing temporary)

Array = Any
# The array, and what is needed to destroy or detach it. Drop the array before that.
Pair = Tuple[Array, Any]


class Contender(contender.Contender):
    """A way to have an array in several processes. The metrics time each method.

    Attributes:
        package: the distribution to install, if any.
        modules: that its user imports; timed by the import metric.
        peer: whether it may be "the best peer"; private memory may not.
        sends_views: whether a Pipe can carry a view of an array without its bytes.
        can_leak: whether a killed process can leave anything.
    """

    package = ""
    modules: tuple[str, ...] = ()
    peer = True
    sends_views = False
    can_leak = True

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

    def growable(self, count: int, capacity: int) -> Pair:
        """Return a new array that will be grown to the capacity."""
        return self.create(count)

    def grow(self, array: Array, count: int) -> Pair:
        """Return the array with a new length; views of the old one stay valid.

        By default: a new one and a copy. Removing the old one is not counted.
        """
        pair = self.create(count)
        np.copyto(pair[0][: array.size], array)
        return pair

    def overfill(self, count: int) -> None:
        """Make an array larger than the free memory, and write to it."""
        array, keep = self.create(count)
        try:
            array.fill(1)
        finally:
            del array
            self.destroy(keep)

    def hold(self, count: int, wait: Callable[[Array, str], None], folder: str) -> Pair:
        """Make an array, call `wait(array, folder)`, and return the array."""
        pair = self.create(count)
        pair[0].fill(1)
        wait(pair[0], folder)
        return pair

    def forget(self) -> None:
        """Free memory that is kept for reuse, so that the next array is a new one."""
