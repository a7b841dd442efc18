"""What is measured, as data: names, sizes, and what the column `reference` holds."""

from __future__ import annotations

from dataclasses import dataclass

from synk_benchmarks.results import Cell, Row
from synk_benchmarks.text import GB, KB, MB

SIZES = (4, KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB)
RANKS = (2, 4)
COPY = "np.copyto"

# Contenders are columns. Whatever else a row is compared with is its reference.
OURS = "synk-comm"
MPICH = "MPICH"
GLOO = "gloo"
REFERENCE = "reference"
COLUMNS = (OURS, MPICH, GLOO, REFERENCE)
PEERS = (MPICH, GLOO)

JOB, DEATHS, IMPORTS = "job", "deaths", "imports"


@dataclass(frozen=True)
class Metric:
    """One thing to measure.

    Attributes:
        name: of the metric; for collectives, of the method of the contenders.
        sized: whether it is measured for each size of array.
        reference: what the column of that name holds; empty for nothing.
        smallest, largest: sizes beyond are left out.
        where: who measures it: ranks that take turns, or processes made for it.
        per_ranks: whether it is measured for each number of ranks.
    """

    name: str
    sized: bool = True
    reference: str = COPY
    smallest: int = 0
    largest: int = 1 << 62
    where: str = JOB
    per_ranks: bool = True

    def sizes(self, wanted: list[int]) -> list[int]:
        """Return the sizes, of these, that it is measured for; [0] if it has no size."""
        if not self.sized:
            return [0]
        return [nbytes for nbytes in wanted if self.smallest <= nbytes <= self.largest]


METRICS = {
    metric.name: metric
    for metric in (
        Metric("barrier", sized=False, reference="multiprocessing.Barrier"),
        Metric("all_reduce"),
        Metric("all_reduce_in_place"),
        Metric("all_reduce_shared"),
        Metric("all_reduce_zmq", reference="", smallest=KB, largest=16 * MB),
        Metric("fused", sized=False, reference="one call for each array"),
        Metric("reduce"),
        Metric("reduce_scatter"),
        Metric("broadcast"),
        Metric("scatter"),
        Metric("gather"),
        Metric("all_gather"),
        Metric("all_to_all"),
        Metric("ping_pong"),
        Metric("mismatch", sized=False, reference=""),
        Metric("dead_peer", sized=False, reference="", where=DEATHS),
        Metric(
            "import", sized=False, reference="import numpy, zmq", where=IMPORTS, per_ranks=False
        ),
    )
}


def row_of(
    metric: str, ranks: int, nbytes: int, cells: dict[str, Cell], *, paired: bool = True
) -> Row:
    """Return the row of a metric with one number of ranks and one size; 0 for none."""
    key = f"{metric}/{ranks}/{nbytes}"
    return Row(key, metric, metric, cells, ranks=ranks, nbytes=nbytes, paired=paired)


def parse_size(text: str) -> int:
    """Read 4, 64K, 64KB or 1M; ValueError if it is none, or no multiple of a float32."""
    plain = text.strip().upper().rstrip("B").strip()
    units = {"K": KB, "M": MB, "G": GB}
    factor = units.get(plain[-1:], 1)
    number = plain[:-1] if plain[-1:] in units else plain
    if not number.strip().isdigit() or int(number) * factor < 4 or int(number) * factor % 4:
        raise ValueError(f"{text!r} is no size; expected a multiple of 4 bytes, as 4, 64K or 1M")
    return int(number) * factor
