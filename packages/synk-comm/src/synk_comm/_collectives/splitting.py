"""Smaller groups: their members, and failures until these have met.

An error while ``split`` makes a new group names ranks of the old one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable, TypeVar

from synk_comm._core.fabric import SLICE_S, Fabric, Share, Watch, aborted, is_of_watch, lost
from synk_comm.exceptions import (
    AbortedError,
    CommError,
    CommTimeout,
    EndOfGroup,
    JoinError,
    PeerLost,
)

T = TypeVar("T")


def split(
    old: Fabric,
    said: tuple[int | None, int],
    share: Share,
    meet: Callable[[Fabric, list[int]], T],
) -> T | None:
    """Make this rank's new group by its color and key; return the result of ``meet``, or None.

    ``meet(fabric, members)`` waits for the group's ranks, which are ``members`` in the old group.
    """
    all_said = share(said)
    colors = sorted({color for color, _ in all_said if color is not None})
    by_key = sorted(range(old.size), key=lambda rank: all_said[rank][1])
    groups = [[rank for rank in by_key if all_said[rank][0] == color] for color in colors]
    mine = None if said[0] is None else colors.index(said[0])
    members = [] if mine is None else groups[mine]
    try:
        new = old.split(groups, mine, share)
    except JoinError as exc:
        failure = _behind(old, [rank for rank in members if rank != old.rank])
        # All ranks of the new group raise it if one of them cannot wire.
        if failure is None or str(exc) in str(failure):
            raise
        raise failure from exc
    if new is None:
        return None
    new.also = _look_at(old, new, members)
    try:
        made = meet(new, members)
    except CommError as exc:
        if is_of_watch(exc):
            raise
        failure = _behind(old) if isinstance(exc, PeerLost) else old.gone(())
        raise failure or in_ranks_of_the_old(exc, members) from exc.__cause__
    new.also = None
    return made


def _look_at(old: Fabric, new: Fabric, members: Sequence[int]) -> Watch:
    """Return a watch, with new ranks in its errors, for ranks that meet in a new group.

    Only the old group can report a rank that dies before it has entered the new one. A rank that
    has entered, or goes elsewhere, may leave the old group at once. An abort of the old group
    always ends the wait: some ranks may not come.
    """
    missed: list[int] = []

    def look() -> None:
        late = [rank for mine, rank in enumerate(members) if not new.has_entered(mine)]
        failure = old.gone(late)
        if isinstance(failure, EndOfGroup):
            rank, is_lost = failure.rank, isinstance(failure, PeerLost)
            if is_lost and rank in late and rank not in missed:
                missed.append(rank)  # it may have come, and left both groups: look twice
                return
            number = members.index(rank) if rank in members else -1  # in the new group
            raise (lost if is_lost else aborted)(number, failure.reason)

    return look


def _behind(old: Fabric, ranks: Sequence[int] = ()) -> CommError | None:
    """Return the end of the old group, or of one of these ranks in it, if that shows soon.

    A rank that aborts it leaves the new one too, which may show there before the reason is here.
    """
    until = time.monotonic() + 2 * SLICE_S
    while True:
        failure = old.gone(ranks)
        if failure is not None or time.monotonic() > until:
            return failure
        time.sleep(SLICE_S / 5)


def in_ranks_of_the_old(exc: CommError, members: Sequence[int]) -> CommError:
    """Return an error of the new group with ranks of the old one."""
    if is_of_watch(exc) or (isinstance(exc, EndOfGroup) and exc.rank < 0):
        return exc
    if isinstance(exc, PeerLost):
        return lost(members[exc.rank], exc.reason)
    note = f"\n(numbered as in the new group, which is ranks {list(members)} of this one)"
    if isinstance(exc, AbortedError):
        return aborted(members[exc.rank], exc.reason + note * ("rank" in exc.reason))
    if isinstance(exc, CommTimeout):
        missing = {members[rank]: doing for rank, doing in exc.missing.items()}
        return CommTimeout(f"{exc}{note}", missing=missing)
    return JoinError(f"{exc}{note}") if isinstance(exc, JoinError) else exc
