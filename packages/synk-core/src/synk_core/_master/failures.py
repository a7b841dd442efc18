"""Raise the error for a start or an order that failed on some rank."""

from __future__ import annotations

import contextlib
import pickle
from time import perf_counter
from typing import Any, Iterator, NoReturn, Optional, Sequence, Tuple

import synk_comm
from synk_core._text import text_of, with_cure
from synk_core._wire.messages import Failure
from synk_core.exceptions import (
    Closed,
    InputValueError,
    Interrupted,
    StartError,
    SynkError,
    WorkerDied,
    WorkerFailed,
    WorkerStalled,
)

FAILURE_TIMEOUT_S = 0.05
"""Seconds to read failures that workers have reported already."""

NOT_ATOMIC = (
    "Ranks that had finished have applied their updates: the values of what it updates may "
    "differ now. Use broadcast(), or fork(atomic=True).\n"
)

GATHER = "; an output with an entry for each row needs op 'gather', as in (variable, 'gather')"


def raise_for_start(error: BaseException, ranks: Any) -> NoReturn:
    """Close the ranks (their `Lifecycle`), and raise the error for a failed start; called while
    `error` is handled."""
    # A worker that fails to join has reported why before the others lose it.
    failures = ranks.pool.failures(range(ranks.rank.size), 0, FAILURE_TIMEOUT_S)
    _blame(error, ranks)
    try:
        if isinstance(error, Exception) and (failures or not isinstance(error, SynkError)):
            ranks.pool.require_started(failures)
            _end_out_of_step(error, ranks, "the start")
        raise error
    except BaseException as raised:
        ranks.end(f"its workers could not be started ({type(raised).__name__})")
        raise


def raise_for(error: BaseException, ranks: Any, interrupted: bool) -> NoReturn:
    """Raise the error for a failed order, or for Ctrl-C; called while `error` is handled."""
    try:
        _translate(error, ranks, interrupted)
        raise  # noqa: PLE0704 - the error that is being handled
    except Exception as raised:
        if interrupted:
            raise KeyboardInterrupt from raised
        raise


def _translate(error: Any, ranks: Any, interrupted: bool) -> None:
    """Raise the error for a failed order, unless it is `error` itself."""
    rank = ranks.rank
    doing = rank.doing or "an order"  # the act under way, as far as this rank has come
    if ranks.closed:
        raise Closed(f"the runtime was closed while {doing} was under way") from error
    if rank.group_raised(error, synk_comm.PeerDeclined):
        failures = ranks.pool.failures(error.reasons, rank.serial)
        if interrupted:
            raise KeyboardInterrupt from None
        failed, cause = worker_failed(error, failures, doing, "" if rank.journal.on else NOT_ATOMIC)
        raise failed from cause
    if rank.group_raised(error, synk_comm.MismatchError):
        text = f"in {doing} the ranks' values do not fit together: {error}"
        raise InputValueError(text + (GATHER if doing.startswith("function") else "")) from error
    if not rank.in_step:
        _end_out_of_step(error, ranks, doing)
    else:
        declined, rank.also_declined = rank.also_declined, {}
        ranks.pool.failures(declined, rank.serial)
    if isinstance(error, Interrupted):
        raise KeyboardInterrupt from None
    if isinstance(error, Exception) and not isinstance(error, SynkError):
        add_note(error, f"in {doing}, on rank {rank.rank} of {rank.size}")


def _blame(error: Any, ranks: Any) -> None:
    """Note which rank was lost first, if MPI has reported one."""
    if ranks.rank.group_raised(error, synk_comm.PeerLost):
        ranks.pool.blame(error.rank)


def _end_out_of_step(error: BaseException, ranks: Any, doing: str) -> None:
    """End a group whose ranks have lost each other; raise the error of a dead or late worker."""
    _blame(error, ranks)
    rank, activity = ranks.rank, ranks.activity
    ours = rank.group_raised(error)
    try:
        ranks.pool.check(activity.doing)
        if ours and isinstance(error, synk_comm.AbortedError) and error.rank != rank.rank:
            raise WorkerDied(error.rank, None, activity.doing(error.rank), error.reason)
    except WorkerDied as died:
        history = activity.history(died.rank)
        ranks.end(str(died))
        if isinstance(error, WorkerDied):
            add_note(error, history)
            return
        add_note(died, history)
        raise died from error
    if ours and isinstance(error, synk_comm.CommTimeout):
        late, seconds = activity.late(), perf_counter() - ranks.wait_began
        stacks = ranks.pool.stacks(late)
        text = activity.describe(late, seconds, stacks)
        stalled = WorkerStalled(late, activity.doing(late[0]), seconds, stacks, text)
        add_note(stalled, activity.history(stalled.rank))
        ranks.end(f"rank {stalled.rank} was {stalled.doing} for too long")
        raise stalled from error
    ranks.end(f"{type(error).__name__} in {doing}: {text_of(error)}".removesuffix(": "))


def worker_failed(
    declined: synk_comm.PeerDeclined, failures: Sequence[Failure], doing: str, note: str
) -> Tuple[WorkerFailed, Optional[BaseException]]:
    """Return the error to raise when workers failed in the act `doing`, and the first worker's own
    exception."""
    reasons = dict(declined.reasons)
    if not failures:
        rank = min(reasons)
        return WorkerFailed(rank, doing, reasons.pop(rank), "", reasons, note), None
    first = min(failures, key=lambda failure: failure.when)
    cause = _unpickled(first.error)
    if isinstance(cause, ModuleNotFoundError):
        name = str(cause).partition("'")[2].partition("'")[0]  # the engine makes errors of its own
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
    """Add a line, unless it is empty, to the printed text of an error."""
    if not note:
        return
    with contextlib.suppress(Exception, SystemExit):  # a user's class may do anything
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(note)
        elif error.args == (str(error),):
            error.args = (f"{error}\n{note}",)


def _unpickled(error: Optional[bytes]) -> Optional[BaseException]:
    """Return a worker's exception, if it can be unpickled: some classes cannot."""
    if error is None:
        return None
    try:
        exception = pickle.loads(error)
    except (Exception, SystemExit) as broken:  # noqa: BLE001 - user code may raise anything
        return broken
    return exception if isinstance(exception, BaseException) else None
