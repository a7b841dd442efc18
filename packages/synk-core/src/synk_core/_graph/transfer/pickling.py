"""Functions and values <-> bytes; variables shared between functions stay shared.

Shared variables, their containers and their storage lists are sent as numbers of the registry
(persistent ids), compiled functions in flat form, objects of the user's ``__main__`` by value
(cloudpickle), and arrays out of band (pickle protocol 5), so that they can lie in shared memory and
are copied once. Pickles only go from the master to its own children.
"""

from __future__ import annotations

import functools
import gc
import io
import pickle
import sys
import threading
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader, PathFinder
from types import FunctionType, ModuleType
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import cloudpickle

from synk_comm.processes import import_path
from synk_core._graph.shared import VariableRegistry
from synk_core.engine import (
    Container,
    FromFunctionOp,
    Function,
    SharedVariable,
    linked_by_kind,
    reduced,
)

from .flat import flatten, is_flat_able, rebuild

RECURSION_LIMIT = 10_000
"""Nested calls while pickling and building: Scan's inner graphs and the linker recurse."""

_recursing = threading.Lock()
# One entry for each thread in `deep_recursion`; all threads have one limit.
_limits: List[int] = []


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit for the duration of the block, if it is lower."""
    with _recursing:
        before = sys.getrecursionlimit()
        _limits.append(_limits[0] if _limits else before)
        sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        yield
    finally:
        with _recursing:
            before = _limits.pop()
            if not _limits:
                sys.setrecursionlimit(before)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection: a graph has a hundred thousand objects, and none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}
"""Locks among sent objects: each process has its own, as after an import."""


class _GraphPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: Any, registry: VariableRegistry, buffers: List[Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._registry = registry

    def persistent_id(self, obj: Any) -> Optional[Tuple[str, int]]:
        if isinstance(obj, SharedVariable):
            return ("variable", self._registry.number_of(obj))
        if isinstance(obj, Container):
            number = self._registry.known_number(obj.storage)
            return None if number is None else ("container", number)
        if type(obj) is list and len(obj) == 1:
            number = self._registry.known_number(obj)
            return None if number is None else ("storage", number)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType, ModuleType)):
            name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
            if name in sys.modules and not _is_found(name):
                with suppress(ValueError):  # it has another name by now
                    cloudpickle.register_pickle_by_value(sys.modules[name])
        if isinstance(obj, Function):
            if is_flat_able(obj):
                return rebuild, (flatten(obj),)
            # Its own pickle also has the values, and refuses ranks with others.
            return _created, (obj.maker, list(obj.input_storage), obj.trust_input)
        if type(obj) is FromFunctionOp:
            # Its own pickle looks the function up by name, which fails for __main__.
            state = vars(obj)
            return FromFunctionOp, (
                state["_FromFunctionOp__fn"],
                obj.itypes,
                obj.otypes,
                state["_FromFunctionOp__infer_shape"],
            )
        if isinstance(obj, functools._lru_cache_wrapper):
            # Its own pickle is its name, which fails for functions that are sent by value.
            name = obj.__module__
            if name == "__main__" or name not in sys.modules or not _is_found(name):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) in _LOCKS:
            return _LOCKS[type(obj)], ()
        form = reduced(obj)
        return super().reducer_override(obj) if form is None else form


@functools.cache
def _is_found(name: str) -> bool:
    """Return whether an import of this name gives this module in another process, too: not one
    that the program has made, has loaded from a file of its choice, or is running as."""
    module, parent = sys.modules[name], name.rpartition(".")[0]
    loader = getattr(module, "__loader__", None)
    # cloudpickle knows __main__, and modules that are built in or cannot be sent.
    if name == "__main__" or isinstance(loader, (type, ExtensionFileLoader)):
        return True
    if parent and (parent not in sys.modules or not _is_found(parent)):
        return False
    own = getattr(module, "__spec__", None)
    try:
        path = sys.modules[parent].__path__ if parent else None
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next(filter(None, specs), None) or PathFinder.find_spec(name, path or import_path())
    except Exception:  # noqa: BLE001 - finders are anybody's code
        spec = own
    # A program that puts an object of another kind in its place does so in a worker, too.
    origin = getattr(own, "origin", None) or getattr(module, "__file__", None)
    return spec is not None and (type(module) is not ModuleType or spec.origin == origin)


def _cached(function: Any, parameters: Dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _created(maker: Any, storage: List[Any], trust_input: bool) -> Any:
    """Build a function that has no flat form, such as DebugMode's, with this storage."""
    function = maker.create(storage)
    function.trust_input = trust_input
    return function


class _GraphUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, registry: VariableRegistry, buffers: Iterable[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._registry = registry

    def persistent_load(self, pid: Any) -> Any:
        kind, number = pid
        variable = self._registry[number]
        if kind == "variable":
            return variable
        return variable.container if kind == "container" else variable.container.storage


def dumps(obj: Any, registry: VariableRegistry) -> Tuple[bytes, List[memoryview]]:
    """Pickle `obj`, and add its shared variables to `registry`; return the pickle, and the
    contiguous buffers of its arrays."""
    file = io.BytesIO()
    buffers: List[Any] = []
    _is_found.cache_clear()
    users = cloudpickle.list_registry_pickle_by_value()
    try:
        with deep_recursion(), no_collection():
            _GraphPickler(file, registry, buffers).dump(obj)
    finally:
        for name in cloudpickle.list_registry_pickle_by_value() - users:
            cloudpickle.unregister_pickle_by_value(ModuleType(name))
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def loads(data: Any, registry: VariableRegistry, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle what `dumps` returned. Arrays of the result lie in `buffers`: copy those to keep."""
    with deep_recursion(), no_collection(), linked_by_kind():
        return _GraphUnpickler(io.BytesIO(data), registry, buffers).load()
