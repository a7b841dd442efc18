"""Who goes into which smaller group, and who watches over them until they have met."""

from __future__ import annotations

from collections.abc import Sequence

from ._fabric import Fabric, Watch


def groups_of(
    said: Sequence[tuple[int | None, int]], rank: int
) -> tuple[list[list[int]], int | None]:
    """Return the ranks of each color in their new order, and which of them is this rank's."""
    colors = sorted({color for color, _ in said if color is not None})
    groups = [
        sorted(
            (r for r, (theirs, _) in enumerate(said) if theirs == color),
            key=lambda r: (said[r][1], r),
        )
        for color in colors
    ]
    color = said[rank][0]
    return groups, None if color is None else colors.index(color)


def watch_also(watch: Watch | None, old: Fabric, new: Fabric, members: Sequence[int]) -> Watch:
    """Return a watch for ranks that meet in a new group.

    Of a rank that dies before it has entered the new group only the old one can tell. Whoever
    has entered, or goes elsewhere, may leave the old group at once.

    Args:
        members: the ranks, in the old group, of the new one.
    """

    def watch_both() -> None:
        if watch is not None:
            watch()
        late = [rank for mine, rank in enumerate(members) if not new.has_entered(mine)]
        failure = old.gone(late) if late else None
        # Given up by this rank, from another thread: the late ones heard of it, and do not come.
        if failure is not None and getattr(failure, "rank", -1) in (*late, old.rank):
            raise failure

    return watch_both
