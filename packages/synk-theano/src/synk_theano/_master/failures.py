"""What to tell the user of an order that failed on some rank."""

from __future__ import annotations

import contextlib
import pickle
from typing import Optional, Sequence, Tuple

import synk_comm
from synk_theano._wire.messages import Failure
from synk_theano.exceptions import WorkerFailed


def worker_failed(
    declined: synk_comm.PeerDeclined, failures: Sequence[Failure], doing: str, note: str
) -> Tuple[WorkerFailed, Optional[BaseException]]:
    """The error to raise when workers failed, and the first one's own exception.

    Args:
        failures: what the workers had to say.
        doing: what was done, if they said nothing.
        note: what else the user has to know.
    """
    reasons = dict(declined.reasons)
    if not failures:
        rank = min(reasons)
        return WorkerFailed(rank, doing, reasons.pop(rank), "", reasons, note), None
    first = min(failures, key=lambda failure: failure.when)
    cause = _unpickled(first.error)
    reason = reasons.pop(first.rank)
    told = (first.rank, first.doing, reason, first.traceback, reasons, note, first.frames)
    return WorkerFailed.of(cause, *told), cause


def add_note(error: BaseException, note: str) -> None:
    """Add a line to what is printed of an error, whatever Python does so."""
    with contextlib.suppress(Exception):  # a user's class may do anything
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(note)
        elif error.args == (str(error),):
            error.args = (f"{error}\n{note}",)


def mismatch(doing: str, error: synk_comm.MismatchError) -> str:
    """What it means that the ranks' values do not fit together."""
    text = f"in {doing} the ranks' values do not fit together: {error}"
    if doing.startswith("function"):
        text += (
            "; an output with an entry for each row needs op 'gather', as in (variable, 'gather')"
        )
    return text


def _unpickled(error: Optional[bytes]) -> Optional[BaseException]:
    """A worker's exception, if it survives the journey: some classes do not."""
    if error is None:
        return None
    try:
        exception = pickle.loads(error)
    except Exception as broken:  # noqa: BLE001 - user code runs here, and may raise anything
        return broken
    return exception if isinstance(exception, BaseException) else None
