"""The collectives over shared variables: the one table of their names and effects."""

from __future__ import annotations

from typing import Dict, NamedTuple


class CollectiveKind(NamedTuple):
    """The effect of a collective on the variables' values.

    Attributes:
        writes: some rank gets a new value.
        equalizes: all ranks have the same value afterwards.
        restores: it may be called on values that a failure has left different: it shows them, or
            makes them equal to the master's.
        on_devices: ranks exchange values where they lie; else only through host memory.
    """

    writes: bool = False
    equalizes: bool = False
    restores: bool = False
    on_devices: bool = False


_READS = CollectiveKind(restores=True)

COLLECTIVES: Dict[str, CollectiveKind] = {
    "broadcast": CollectiveKind(writes=True, equalizes=True, restores=True, on_devices=True),
    "scatter": CollectiveKind(writes=True),
    "set_value": CollectiveKind(writes=True),
    "get_value": _READS,
    "gather": _READS._replace(on_devices=True),
    "all_gather": CollectiveKind(writes=True, equalizes=True, on_devices=True),
    "reduce": CollectiveKind(writes=True, on_devices=True),
    "all_reduce": CollectiveKind(writes=True, equalizes=True, on_devices=True),
    "get_shapes": _READS,
    "reseed": CollectiveKind(writes=True, restores=True),
}

WRITING = frozenset(name for name, kind in COLLECTIVES.items() if kind.writes)
EQUALIZING = frozenset(name for name, kind in COLLECTIVES.items() if kind.equalizes)
RESTORING = frozenset(name for name, kind in COLLECTIVES.items() if kind.restores)
