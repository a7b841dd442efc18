"""Smaller groups: their members, and failures until these have met.

Errors number ranks as the group does whose method raised them: an error while ``split`` makes a
new group names ranks of the old one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable, TypeVar

from synk_comm._core.fabric import SLICE_S, Fabric, Share, Watch, aborted, is_of_watch, lost
from synk_comm.exceptions import AbortedError, CommError, CommTimeout, JoinError, PeerLost

T = TypeVar("T")


def split(
    old: Fabric,
    said: tuple[int | None, int],
    share: Share,
    meet: Callable[[Fabric], T],
) -> tuple[T | None, list[int]]:
    """Make this rank's new group, and let its ranks meet.

    Args:
        said: color and key of this rank.
        meet: waits for the ranks of the new fabric, and returns what ``split`` is to return.

    Returns:
        None if this rank goes into no group; and the ranks, in the old group, of the new one.
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
        # All of the new group raise it where one of them said that it cannot wire.
        if failure is None or str(exc) in str(failure):
            raise
        raise failure from exc
    if new is None:
        return None, members
    new.also = _look_at(old, new, members)
    try:
        made = meet(new)
    except CommError as exc:
        if is_of_watch(exc):
            raise
        failure = _behind(old) if isinstance(exc, PeerLost) else old.gone(())
        raise failure or in_ranks_of_the_old(exc, members) from exc.__cause__
    new.also = None
    return made, members


def _look_at(old: Fabric, new: Fabric, members: Sequence[int]) -> Watch:
    """Return a watch for ranks that meet in a new group, which calls them by their new ranks.

    Only the old group can report a rank that dies before it has entered the new one. A rank that
    has entered, or goes elsewhere, may leave the old group at once. If the old group is aborted,
    it is unknown which ranks still come.
    """
    missed: list[int] = []

    def look() -> None:
        late = [rank for mine, rank in enumerate(members) if not new.has_entered(mine)]
        failure = old.gone(late)
        if isinstance(failure, (AbortedError, PeerLost)):
            rank, is_lost = failure.rank, isinstance(failure, PeerLost)
            if is_lost and rank in late and rank not in missed:
                # It may have come, and left both groups: looked at twice, the new one knows.
                missed.append(rank)
                return
            number = members.index(rank) if rank in members else -1  # in the new group
            raise (lost if is_lost else aborted)(number, failure.reason)

    return look


def _behind(old: Fabric, ranks: Sequence[int] = ()) -> CommError | None:
    """Return what ended the old group, or which of these ranks has left it, if that shows now.

    A rank that aborts it leaves the new one too, which may show there before the reason is here.
    """
    until = time.monotonic() + 2 * SLICE_S
    while True:
        failure = old.gone(ranks)
        if failure is not None or time.monotonic() > until:
            return failure
        time.sleep(SLICE_S / 5)


def in_ranks_of_the_old(exc: CommError, members: Sequence[int]) -> CommError:
    """Return an error with ranks of the new group, the members, translated to those of the old."""
    is_of_nobody = isinstance(exc, (AbortedError, PeerLost)) and exc.rank < 0
    if is_of_watch(exc) or is_of_nobody:
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
