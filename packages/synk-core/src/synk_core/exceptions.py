"""All errors that synk-core raises on purpose.

Each is a `SynkError`, and also of the built-in class that a caller would catch. Messages give the
value got, the value expected, and the cure.
"""

from __future__ import annotations

import contextlib
import copyreg
import signal
from typing import Any, Mapping, Optional, Sequence, Tuple

import synk_shm


class SynkError(Exception):
    """Base class of all errors of synk-core."""


class NotForked(SynkError, RuntimeError):
    """A feature that needs workers was used before `fork()`."""


class AlreadyForked(SynkError, RuntimeError):
    """`fork()` was called while a runtime is open."""


class Closed(SynkError, RuntimeError):
    """A function, a `Data` or a collective was used after its runtime was closed."""


class SpecError(SynkError, TypeError):
    """`function()` was given inputs, outputs, updates or givens of a wrong form."""


class NestedCall(SynkError, RuntimeError):
    """A function or collective was called while another one of the same runtime was running."""


class OpError(SynkError, ValueError):
    """A reduce operation does not exist, or is not available here."""


class InputTypeError(SynkError, TypeError):
    """An input has a wrong type, dtype or ndim, or the number of inputs is wrong."""


class InputValueError(SynkError, ValueError):
    """An input has the right type but a shape or length that cannot be used."""


class BatchError(SynkError, IndexError, ValueError):
    """`batch` or `batch_s` selects rows that do not exist. In 1.0 it was a ValueError."""


class SharedMemoryFull(SynkError, synk_shm.ShmFullError):
    """There is no room for an array that all ranks share; nothing was sent.

    Both /dev/shm and, on Linux, the memory of the machine or container are full. Also an
    ``OSError`` with `errno`.
    """


class NotSharedVariable(SynkError, TypeError):
    """A collective was given something that is not a shared variable of the engine."""


class StartError(SynkError, RuntimeError):
    """A worker process could not be started; the message names the rank and the cause."""


class NotExact(SynkError, AssertionError):
    """A call does not give what one process would, or ranks differ in values or code.

    Nothing has changed on any rank. See ``fork(proof=...)``.

    Attributes:
        report: the `Report`.
    """

    def __init__(self, report: Any) -> None:
        super().__init__(str(report))
        self.report = report


class VerifyError(NotExact):
    """A report of `verify()` is wrong."""


class DecompositionWarning(UserWarning):
    """An output of a function cannot be computed from the ranks' shares of rows."""


class ProofWarning(UserWarning):
    """A call is not exact, with ``fork(proof="warn")``; or it cannot be proved."""


class PerformanceWarning(UserWarning):
    """Something works, but takes much longer than it would have to; the message has the cure."""


class StallWarning(UserWarning):
    """A rank has kept the others waiting for long; the message has its stack."""


class ReplicaWarning(UserWarning):
    """A variable has different values on different ranks."""


class ReplicasDiffer(SynkError, RuntimeError):
    """The ranks' values of a variable may differ after a failure; `broadcast()` cures that."""


class NotFinite(SynkError, FloatingPointError):
    """While `watch_finite()` is on, a rank has computed NaN or infinity.

    Nothing has changed on any rank. On a worker it is the ``__cause__`` of `WorkerFailed`.

    Attributes:
        rank: the rank that computed it.
        piece: in a call with ``num_slices=`` the number of the slice, from 1; else None.
        what: the output or updated variable, in words.
        source: the cause, in words.
        row: the first row that causes it, counted in the call; None if no row does.
        share: (start, stop) of the rank's rows among those that the call uses, or None.
    """

    rank = 0
    piece: Optional[int] = None
    what = source = ""
    row: Optional[int] = None
    share: Optional[Tuple[int, int]] = None

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        vars(self).update(attributes)


class WorkerFailed(SynkError, RuntimeError):
    """User code raised in a worker; the runtime stays usable.

    It is also of the class of the worker's error, so that ``except ValueError`` catches one of any
    rank, and has its attributes.

    Attributes:
        rank: the rank that failed first.
        doing: its act, with the rows of the call.
        others: the ranks that failed after it, with their reasons.
        traceback: the worker's formatted traceback, whole. The exception itself, if it could be
            pickled, is this error's ``__cause__``.
    """

    def __init__(
        self,
        rank: int,
        doing: str,
        reason: str,
        traceback: str,
        others: Optional[Mapping[int, str]] = None,
        note: str = "",
        frames: Optional[str] = None,
    ) -> None:
        also = "".join(
            f"\nThen rank {r} failed: {_first_line(t)}" for r, t in (others or {}).items()
        )
        text = f"rank {rank} failed in {doing}: {_first_line(reason)}{also}\n{note}".rstrip()
        frames = traceback or reason if frames is None else frames
        if frames:
            text += f"\nTraceback of rank {rank}:\n{frames.rstrip()}"
        # Not through super(): the other base class may take other arguments.
        Exception.__init__(self, text)
        self.rank = rank
        self.others = dict(others or {})
        self.doing = doing
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return _failed_again, (self.args, vars(self), self.__cause__)

    @classmethod
    def of(cls, cause: Optional[BaseException], *details: Any) -> WorkerFailed:
        """Make an error that is, if possible, also of its cause's class, with its attributes."""
        # Some users' classes cannot be derived from, or not together with others.
        with contextlib.suppress(Exception, SystemExit):
            if isinstance(cause, Exception):
                names = {"__module__": cls.__module__, "__doc__": cls.__doc__}
                both: WorkerFailed = type(cls.__name__, (cls, type(cause)), names)(*details)
                for name, value in vars(cause).items():
                    vars(both).setdefault(name, value)
                if isinstance(cause, OSError):
                    for name in ("errno", "strerror", "filename", "filename2"):
                        setattr(both, name, getattr(cause, name))
                return both
        return cls(*details)


def _failed_again(args: Any, attributes: Mapping[str, Any], cause: Any) -> WorkerFailed:
    error = WorkerFailed.of(cause, 0, "", "", "")
    error.args, error.__cause__ = args, cause
    vars(error).update(attributes)
    return error


def _pickled(error: Any) -> Any:
    """Pickle an error with its text, not with the arguments of its class."""
    state = {**vars(error), "args": error.args}
    return copyreg.__newobj__, (type(error),), state  # type: ignore[attr-defined]


class WorkerStalled(SynkError, TimeoutError):
    """Some workers kept the others waiting longer than `timeout_s`; this closes the runtime.

    A note at the end of the printed error has the last acts of the first one.

    Attributes:
        rank: the first of these workers.
        ranks: all of them.
        doing: the act of the first one.
        seconds: duration of the order until then.
        stacks: their Python stacks, by rank.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        doing: str,
        seconds: float,
        stacks: Mapping[int, str],
        report: str,
    ) -> None:
        super().__init__(
            f"the call was given up after {seconds:.0f} s, and the runtime is closed: {report}\n"
            f"For longer calls set fork(timeout_s=...)."
        )
        self.rank = ranks[0]
        self.ranks = tuple(ranks)
        self.doing = doing
        self.seconds = seconds
        self.stacks = dict(stacks)

    __reduce__ = _pickled


class Interrupted(KeyboardInterrupt):
    """Raised in a worker whose order the master has given up. Users do not see it."""


class WorkerDied(SynkError, RuntimeError):
    """A worker process ended unexpectedly; this closes the runtime.

    A note at the end of the printed error has the last acts of the rank.

    Attributes:
        rank: of the worker.
        exitcode: its exit status as in `subprocess`: negative for a signal; None if it is not
            known, because the process lives, or because a program that ignores SIGCHLD or waits for
            any child has taken it.
        doing: its act, in words.
        signal: the signal's name (``"SIGKILL"``), or None.
        host: its host, if an MPI launcher has started it; else None.
    """

    def __init__(
        self,
        rank: int,
        exitcode: Optional[int],
        doing: str,
        reason: str = "",
        host: Optional[str] = None,
    ) -> None:
        self.rank, self.exitcode, self.doing, self.host = rank, exitcode, doing, host
        self.signal: Optional[str] = None
        if reason:
            how = f"gave up with {reason}"
        elif exitcode is None:
            how = "ended, or closed its connection,"
        elif exitcode < 0:
            try:
                self.signal = signal.Signals(-exitcode).name
            except ValueError:
                self.signal = f"signal {-exitcode}"
            how = f"was killed by {self.signal}"
        else:
            how = f"exited with status {exitcode}"
        where = "" if host is None else f" on host {host}"
        cure = (
            "All workers are stopped and their memory is freed. Call fork() to start again"
            if host is None
            else "Its launcher cannot replace it: save what you need, and start the program again, "
            "from a checkpoint"
        )
        text = f"the worker process of rank {rank}{where} {how} while it was {doing}. {cure}."
        if self.signal == "SIGKILL":
            text += " (SIGKILL often comes from the kernel when memory runs out: see `dmesg`.)"
        super().__init__(text)

    __reduce__ = _pickled


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["unknown error"])[0]


__all__ = [
    name
    for name, found in globals().copy().items()
    if isinstance(found, type) and issubclass(found, (SynkError, Warning))
]
