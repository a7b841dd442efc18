"""Make the errors and texts for an order that failed on some rank."""

from __future__ import annotations

import contextlib
import pickle
from typing import Iterator, Optional, Sequence, Tuple

import synk_comm
from synk_core._text import text_of, with_cure
from synk_core._wire.messages import Failure
from synk_core.exceptions import StartError, SynkError, WorkerFailed


def worker_failed(
    declined: synk_comm.PeerDeclined, failures: Sequence[Failure], doing: str, note: str
) -> Tuple[WorkerFailed, Optional[BaseException]]:
    """Return the error to raise when workers failed, and the first worker's own exception.

    Args:
        doing: the act under way, for workers without a report.
        note: a line to add to the message.
    """
    reasons = dict(declined.reasons)
    if not failures:
        rank = min(reasons)
        return WorkerFailed(rank, doing, reasons.pop(rank), "", reasons, note), None
    first = min(failures, key=lambda failure: failure.when)
    cause = _unpickled(first.error)
    if isinstance(cause, ModuleNotFoundError):
        name = str(cause).partition("'")[2].partition("'")[0]  # the engine makes errors anew
        note = (
            f"Rank {first.rank} does not find the module {name!r}: on every host, install it, or "
            f"add its folder before the function is built: sys.path.append('/its/folder')\n{note}"
        )
    reason = reasons.pop(first.rank)
    details = (first.rank, first.doing, reason, first.traceback, reasons, note, first.frames)
    return WorkerFailed.of(cause, *details), cause


@contextlib.contextmanager
def start_errors() -> Iterator[None]:
    """Raise StartError, with the cure, in place of a system's error."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        is_limit = not isinstance(error, RuntimeError) or "start new thread" in text_of(error)
        if isinstance(error, SynkError) or not is_limit:
            raise
        raise StartError(f"the workers could not be started: {with_cure(error)}") from error


def add_note(error: BaseException, note: str) -> None:
    """Add a line to the printed text of an error, on every version of Python; none if it is ""."""
    if not note:
        return
    with contextlib.suppress(Exception, SystemExit):  # a user's class may do anything
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(note)
        elif error.args == (str(error),):
            error.args = (f"{error}\n{note}",)


def mismatch(doing: str, error: synk_comm.MismatchError) -> str:
    """Return the message for values of the ranks that do not fit together."""
    text = f"in {doing} the ranks' values do not fit together: {error}"
    if doing.startswith("function"):
        text += (
            "; an output with an entry for each row needs op 'gather', as in (variable, 'gather')"
        )
    return text


def _unpickled(error: Optional[bytes]) -> Optional[BaseException]:
    """Return a worker's exception, if it can be unpickled: some classes cannot."""
    if error is None:
        return None
    try:
        exception = pickle.loads(error)
    except (Exception, SystemExit) as broken:  # noqa: BLE001 - user code may raise anything
        return broken
    return exception if isinstance(exception, BaseException) else None
