"""What to tell the user of an order that failed on some rank."""

from __future__ import annotations

import pickle
from typing import Optional, Sequence, Tuple

import synk_comm

from ._messages import Failure
from .exceptions import WorkerFailed


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
    reason = reasons.pop(first.rank)
    error = WorkerFailed(first.rank, first.doing, reason, first.traceback, reasons, note)
    return error, _unpickled(first.error)


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
