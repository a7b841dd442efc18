"""All errors between ranks, under one base class.

Each class is also the standard library's kind that a caller would catch, and can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "AbortedError",
    "ClosedError",
    "CommError",
    "CommTimeout",
    "JoinError",
    "MismatchError",
    "MisuseError",
    "PeerDeclined",
    "PeerLost",
    "RankDied",
    "RankFailed",
]


class CommError(Exception):
    """Base class of all errors of this package that involve other ranks."""


class MismatchError(CommError, ValueError):
    """The ranks called different things; raised on *every* rank, before any output is written.

    The communicator stays in step and usable.

    Attributes:
        calls: the call of each rank, by rank.
    """

    def __init__(self, message: str, *, calls: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.calls = dict(calls or {})


class PeerDeclined(CommError, RuntimeError):
    """At least one rank took its turn with ``decline()``; the communicator stays usable.

    Attributes:
        reasons: the reasons given, by declining rank.
    """

    def __init__(self, message: str, *, reasons: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})


class EndOfGroup(CommError):
    """One rank ended the group: the base class of ``PeerLost`` and ``AbortedError``.

    Attributes:
        rank: the peer that is gone, or the rank that gave up; -1 if that is unknown.
        reason: how the loss showed, or the text of the rank that gave up.
    """

    def __init__(self, message: str, *, rank: int = -1, reason: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.reason = reason


class PeerLost(EndOfGroup, ConnectionError):
    """A peer's process ended, or closed its communicator, while it was needed."""


class AbortedError(EndOfGroup, RuntimeError):
    """Some rank gave the group up: by ``abort()``, or by leaving a collective half-way."""


class CommTimeout(CommError, TimeoutError):
    """Some ranks did not come in time.

    Attributes:
        missing: the last known call of each missing rank, by rank.
    """

    def __init__(self, message: str, *, missing: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.missing = dict(missing or {})


class JoinError(CommError, ConnectionError):
    """A rank could not enter its group: wrong ticket, missing descriptor, failed authentication."""


class ClosedError(CommError, RuntimeError):
    """The communicator was used after ``close()``."""


class MisuseError(CommError, RuntimeError):
    """A communicator was used by two threads, or after ``os.fork()``; or no ranks start here."""


class RankFailed(CommError, RuntimeError):
    """A rank that ``launch`` started raised an exception, which is the ``__cause__``.

    There is no ``__cause__`` if the exception could not be pickled.

    Attributes:
        rank: the rank that failed first; not one that failed because another had.
        traceback: the text of its traceback, or "".
        exitcode: of its process; negative for a signal, None if the process had not ended.
    """

    def __init__(
        self, message: str, *, rank: int = -1, traceback: str = "", exitcode: int | None = None
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback
        self.exitcode = exitcode

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, or None."""
        return -self.exitcode if self.exitcode is not None and self.exitcode < 0 else None


class RankDied(RankFailed):
    """The process of a rank ended before its function had returned, or while it shut down."""
