"""The table of collectives: all that distinguishes one from another, except its signature.

A row determines the comparison of the ranks' calls (``calls``), the places of arrays in the slots
(``repeats``), the non-blocking form, and the tests and documentation that there must be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .ops import ReduceOp


class CollectiveRow(NamedTuple):
    """A row of the table; "" is nothing."""

    name: str
    sends: str = ""  # "whole": the same to every receiver; "parts": an array for each rank
    makes: str = ""  # "fold": one array, reduced; "rows": a list; "one": the root's; "fill": in x
    root: str = ""  # whether the root alone "sends" or "receives"
    alike: str = ""  # must agree besides dtypes: "shapes", or "numbers of dimensions"
    optional: bool = False  # whether a rank may send nothing, if another sends something

    @property
    def is_of_objects(self) -> bool:
        """Whether pickled objects are sent."""
        return self.name.endswith("_object")

    @property
    def in_blocks(self) -> bool:
        """Whether the parts are equal blocks of one array, unless a list is given."""
        return (self.sends, self.makes) == ("parts", "fold")


class Arguments(NamedTuple):
    """The arguments of a collective, whichever it takes."""

    x: Any = None
    out: Any = None
    op: str | ReduceOp = "sum"
    root: int = 0
    weight: float | None = None


DIMENSIONS = "numbers of dimensions"

_OF_ARRAYS = (
    CollectiveRow("barrier"),
    CollectiveRow("all_reduce", "whole", "fold", "", "shapes", True),
    CollectiveRow("reduce", "whole", "fold", "receives", "shapes", True),
    CollectiveRow("reduce_scatter", "parts", "fold", "", "shapes"),
    CollectiveRow("broadcast", "whole", "fill", "sends", "shapes"),
    CollectiveRow("scatter", "parts", "one", "sends"),
    CollectiveRow("gather", "whole", "rows", "receives", DIMENSIONS, True),
    CollectiveRow("all_gather", "whole", "rows", "", DIMENSIONS, True),
    CollectiveRow("all_to_all", "parts", "rows"),
)
# Pickled objects are bytes, of any length; each rank sends one.
_OF_OBJECTS = tuple(
    row._replace(name=f"{row.name}_object", alike="", optional=False)
    for row in _OF_ARRAYS
    if row.makes not in ("", "fold")
)

TABLE = {row.name: row for row in (*_OF_ARRAYS, *_OF_OBJECTS)}
"""The collectives of every communicator, by name."""

# A method of the communicator on GPUs alone.
_PARTITIONED = CollectiveRow("partitioned_all_reduce", "whole", "fold", "", "shapes")
_BY_NAME = {**TABLE, _PARTITIONED.name: _PARTITIONED}


def row_of(method: str) -> CollectiveRow:
    """Return a row by its name; an empty one of other calls, such as ``split``."""
    return _BY_NAME.get(method) or CollectiveRow("")
