"""Shared arrays for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from synk_shm._arrays import constructors
from synk_shm._arrays.arguments import Shape
from synk_shm._arrays.removal import unlink
from synk_shm._arrays.resize import resize
from synk_shm._arrays.segment import Array


class Scope:
    """Makes arrays like the functions of the package, and unlinks them when it ends."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def empty(self, shape: Shape, dtype: Any = float, **options: Any) -> Array:
        """Make an array, as `synk_shm.empty`."""
        return self._keep(constructors.empty(shape, dtype, **options))

    def zeros(self, shape: Shape, dtype: Any = float, **options: Any) -> Array:
        """Make an array, as `synk_shm.zeros`."""
        return self._keep(constructors.zeros(shape, dtype, **options))

    def ones(self, shape: Shape, dtype: Any = float, **options: Any) -> Array:
        """Make an array, as `synk_shm.ones`."""
        return self._keep(constructors.ones(shape, dtype, **options))

    def full(self, shape: Shape, fill_value: Any, dtype: Any = None, **options: Any) -> Array:
        """Make an array, as `synk_shm.full`."""
        return self._keep(constructors.full(shape, fill_value, dtype, **options))

    def empty_like(self, prototype: Any, dtype: Any = None, **options: Any) -> Array:
        """Make an array, as `synk_shm.empty_like`."""
        return self._keep(constructors.empty_like(prototype, dtype, **options))

    def share(self, array: Any, *, name: str | None = None, **options: Any) -> Array:
        """Copy an array, as `synk_shm.share` does with ``copy=True``."""
        return self._keep(constructors.share(array, copy=True, name=name, **options))

    def resize(self, a: Array, new_length: int) -> Array:
        """Resize, as `synk_shm.resize`; the result belongs to this scope, too."""
        return self._keep(resize(a, new_length))

    def _keep(self, array: Array) -> Array:
        self._arrays.append(array)
        return array

    def _end(self) -> None:
        arrays, self._arrays = self._arrays, []
        for array in arrays:
            unlink(array, missing_ok=True)


@contextlib.contextmanager
def scope() -> Iterator[Scope]:
    """Open a block that unlinks every array made through it at its end.

    Those that were pickled or kept are unlinked as well: a process that has the memory keeps
    it until its last array there dies, but none can attach it any more.

    Example:
        >>> import synk_shm
        >>> with synk_shm.scope() as s:
        ...     a = s.zeros((2, 3))
        ...     address = synk_shm.handle(a)
        >>> address.attach()
        Traceback (most recent call last):
        synk_shm.exceptions.ShmNotFoundError: ...
    """
    made = Scope()
    try:
        yield made
    finally:
        made._end()
