"""The table of collectives: all that distinguishes one from another, except its signature.

From a row follow the comparison of the ranks' calls (``calls``), the places of arrays in the slots,
in repeated calls too (``repeats``), the non-blocking form, and what tests and documentation must
cover. The signatures are those of ``synk_comm.abc.Communicator``, written once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .ops import ReduceOp


@dataclass(frozen=True, eq=False)  # compared by identity: rows are part of the key of every call
class Collective:
    """A row of the table.

    Attributes:
        name: of the method.
        sends: ``"whole"``: what a rank sends is for every receiver; ``"parts"``: an array for each
            rank; ``""``: nothing.
        makes: of what a rank receives: ``"fold"``: one array, reduced; ``"rows"``: a list;
            ``"one"``: the root's; ``"fill"``: the same, in ``x``; ``""``: nothing.
        from_root, to_root: whether the root alone sends, or receives.
        alike: ``"shapes"``, or ``"numbers of dimensions"``, must agree, besides dtypes.
        optional: whether a rank may send nothing, if another sends something.
    """

    name: str
    sends: str = ""
    makes: str = ""
    from_root: bool = False
    to_root: bool = False
    alike: str = ""
    optional: bool = False

    @property
    def is_of_objects(self) -> bool:
        """Whether pickled objects are sent."""
        return self.name.endswith("_object")

    @property
    def has_root(self) -> bool:
        """Whether one rank is the only sender, or the only receiver."""
        return self.from_root or self.to_root


class Arguments(NamedTuple):
    """The arguments of a collective, whichever it takes."""

    x: Any = None
    out: Any = None
    op: str | ReduceOp = "sum"
    root: int = 0
    weight: float | None = None


DIMENSIONS = "numbers of dimensions"

BARRIER = Collective("barrier")
ALL_REDUCE = Collective("all_reduce", "whole", "fold", alike="shapes", optional=True)
REDUCE = replace(ALL_REDUCE, name="reduce", to_root=True)
REDUCE_SCATTER = Collective("reduce_scatter", "parts", "fold", alike="shapes")
BROADCAST = Collective("broadcast", "whole", "fill", from_root=True, alike="shapes")
SCATTER = Collective("scatter", "parts", "one", from_root=True)
ALL_GATHER = Collective("all_gather", "whole", "rows", alike=DIMENSIONS, optional=True)
GATHER = replace(ALL_GATHER, name="gather", to_root=True)
ALL_TO_ALL = Collective("all_to_all", "parts", "rows")


def _of_objects(row: Collective) -> Collective:
    """Return the same collective of pickled objects, which may be of any length."""
    return replace(row, name=f"{row.name}_object", alike="", optional=False)


BROADCAST_OBJECT = _of_objects(BROADCAST)
SCATTER_OBJECT = _of_objects(SCATTER)
GATHER_OBJECT = _of_objects(GATHER)
ALL_GATHER_OBJECT = _of_objects(ALL_GATHER)
ALL_TO_ALL_OBJECT = _of_objects(ALL_TO_ALL)

TABLE = (
    *(BARRIER, ALL_REDUCE, REDUCE, REDUCE_SCATTER),
    *(BROADCAST, SCATTER, GATHER, ALL_GATHER, ALL_TO_ALL),
    *(BROADCAST_OBJECT, SCATTER_OBJECT, GATHER_OBJECT, ALL_GATHER_OBJECT, ALL_TO_ALL_OBJECT),
)
"""All collectives that are methods of every communicator."""

PARTITIONED_ALL_REDUCE = replace(ALL_REDUCE, name="partitioned_all_reduce", optional=False)
"""A method of the communicator on GPUs."""

_OTHER = Collective("")
_BY_NAME = {row.name: row for row in (*TABLE, PARTITIONED_ALL_REDUCE)}


def row_of(method: str) -> Collective:
    """Return a row by its name; of a call that has none, such as ``split``, an empty one."""
    return _BY_NAME.get(method, _OTHER)
