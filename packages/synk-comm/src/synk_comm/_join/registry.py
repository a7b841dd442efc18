"""Back-ends that are put around a group of ranks: what one is, and where it is found by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any, Sequence, Union

from synk_comm.abc import Communicator
from synk_comm.exceptions import JoinError

ENTRY_POINTS = "synk_comm.backends"
"""The entry-point group in which other packages announce their back-ends."""

MPI = "mpi"
CARRIERS = ("shm", "zmq", MPI)
"""The back-ends over which ranks join; all others begin with the communicator of one of these."""


class Backend(ABC):
    """A way to carry arrays between ranks: an object given to ``connect``, or registered by name.

    A package announces one, a subclass with no arguments or an instance, by an entry point::

        [project.entry-points."synk_comm.backends"]
        carrier-pigeons = "pigeons:PigeonBackend"

    Attributes:
        name: what users call it.
    """

    name: str

    @abstractmethod
    def open(self, comm: Communicator) -> Communicator:
        """Return this rank's communicator; every rank calls it at the same time.

        What is raised on one rank ends the group on all.

        Args:
            comm: between the same ranks, by shared memory or sockets: for the exchange of
                addresses, and to keep, or to close.
        """


class NcclBackend(Backend):
    """NCCL for arrays in GPU memory, beside ``shm`` or ``zmq`` for all else."""

    name = "nccl"

    def open(self, comm: Communicator) -> Communicator:
        """Put NCCL around the communicator."""
        try:
            module = importlib.import_module("synk_comm._backends.nccl.communicator")
        except ImportError as exc:
            raise _missing("nccl", "synk-comm", ["nccl"], exc) from exc
        wrapped: Communicator = module.nccl(comm)
        return wrapped


AnyBackend = Union[str, Backend]


class Registry:
    """Back-ends by name: the built-in ones, registered ones, and those of other packages."""

    def __init__(self) -> None:
        self._known: dict[str, Backend] = {}

    def register(self, name: str, backend: Backend) -> None:
        """Give a back-end a name; ValueError if the name is taken by another one."""
        if not name or name == "auto" or not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"a back-end's name is letters, digits, '-' and '_', got {name!r}")
        _check(backend)
        if name in CARRIERS or self._known.setdefault(name, backend) is not backend:
            raise ValueError(f"there is already a back-end with the name {name!r}")

    def names(self) -> list[str]:
        """Return all known names."""
        return sorted({*CARRIERS, *self._known, *(point.name for point in _entry_points())})

    def find(self, backend: AnyBackend) -> Backend | None:
        """Return the back-end of this name, or the object itself; None for those of CARRIERS."""
        if not isinstance(backend, str):
            return _check(backend)
        if backend in CARRIERS:
            return None
        if backend in self._known:
            return self._known[backend]
        for point in _entry_points():
            if point.name == backend:
                self.register(backend, _load(point))
                return self._known[backend]
        expected = ", ".join(repr(name) for name in ["auto", *self.names()])
        raise ValueError(f"unknown backend {backend!r}; expected one of {expected}")


REGISTRY = Registry()
"""The one place where back-ends are found by name; other packages add to it as they are used."""


def register_backend(name: str, backend: Backend) -> None:
    """Give a back-end a name, so that ``connect(backend=name)`` finds it.

    Every rank must do so. Packages announce theirs by an entry point in the group
    ``synk_comm.backends`` instead; see ``Backend``.

    Raises:
        ValueError: another back-end has this name.
    """
    REGISTRY.register(name, backend)


def put_around(backend: Backend, comm: Communicator) -> Communicator:
    """Open a back-end over a communicator; give the communicator up if that fails."""
    try:
        wrapped = backend.open(comm)
    except BaseException as exc:
        comm.abort(f"{type(exc).__name__} while {backend.name} was set up: {exc}")
        comm.close()
        raise
    if not getattr(wrapped, "why", ""):
        wrapped.why = f"{backend.name}: asked for"
    return wrapped


def _check(backend: Any) -> Backend:
    if isinstance(backend, type) or not callable(getattr(backend, "open", None)):
        raise TypeError(f"a back-end is a name or an instance of Backend, got {backend!r}")
    found: Backend = backend
    return found


def _entry_points() -> list[Any]:
    # It takes longer to import than all of this package, and built-in back-ends do without.
    from importlib.metadata import entry_points

    points: Any = entry_points()
    if hasattr(points, "select"):
        return list(points.select(group=ENTRY_POINTS))
    return list(points.get(ENTRY_POINTS, ()))  # Python 3.9


def _load(point: Any) -> Backend:
    try:
        loaded = point.load()
    except ImportError as exc:
        raise _missing(point.name, _package_of(point), point.extras, exc) from exc
    return _check(loaded() if isinstance(loaded, type) else loaded)


def _package_of(point: Any) -> str:
    """Return the name of the package that has announced a back-end."""
    from importlib.metadata import distributions

    for dist in distributions():  # Python 3.9 does not keep it in the point
        if any(one.group == ENTRY_POINTS and one == point for one in dist.entry_points):
            return str(dist.metadata["Name"])
    return str(point.value.partition(":")[0])


def _missing(name: str, package: str, extras: Sequence[str], exc: ImportError) -> JoinError:
    """Return the error for a back-end whose packages are not installed, with the cure."""
    wanted = f"{package}[{','.join(extras)}]" if extras else package
    return JoinError(
        f"the backend {name!r} needs packages that are not installed ({exc}); "
        f"install them with: pip install '{wanted}'"
    )


REGISTRY.register("nccl", NcclBackend())
