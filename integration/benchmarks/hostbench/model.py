"""What calls cost on several hosts, from a few constants; and what that says of training on many.

All times in seconds. The model has one rank on each host. Nothing overlaps: a step computes, then
it communicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, NamedTuple

from synk_benchmarks.results import Row

ORDER_ROUNDS, CALL_ROUNDS = 2, 3
"""Rounds of an order; of one with a collective, or with rows for other hosts."""
SMALL_NBYTES = 1024
"""Bytes that travel within a round."""
OURS, THEIRS, PART = "synkhronos", "mpi4py", "synk-comm"
LINK, WHOLE, ROWS = "link", "Data, written again", "rows, written again"
"""Groups of rows."""
LARGE_NBYTES = 16 << 20
"""Bytes from which a link's rate is taken."""


def record_bytes(ranks: int) -> int:
    """Return the bytes that each rank gives in a round of the back-end ``mpi``."""
    return max(128, min(1280, (1 << 16) // ranks // 64 * 64))


def hops(ranks: int) -> int:
    """Return the messages that follow each other until each rank has heard of all others."""
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


@dataclass(frozen=True)
class Costs:
    """The constants.

    Attributes:
        latency_s: from the call of a send to the end of the receive, of a byte.
        rate: bytes a second of each host's link, each way.
        round_s: what a round takes beside its messages.
        record_s: of each rank's record in a round.
        reduce_s: of a reduction, for each byte: what the processor does.
        ship_s: of rows that are sent, for each byte: what the processors do.
        wake_s: of a call after a pause, in which ranks have begun to nap.
    """

    latency_s: float
    rate: float
    round_s: float = 0.0
    record_s: float = 0.0
    reduce_s: float = 0.0
    ship_s: float = 0.0
    wake_s: float = 0.0

    def rounds(self, count: int, ranks: int) -> float:
        """Return the time of so many rounds."""
        heard = (ranks - 1) * record_bytes(ranks) / self.rate
        alone = self.round_s + ranks * self.record_s
        return count * (alone + hops(ranks) * self.latency_s + heard)

    def order(self, ranks: int) -> float:
        """Return the time of a call that computes nothing."""
        return self.rounds(ORDER_ROUNDS, ranks)

    def reduction(self, nbytes: int, ranks: int) -> float:
        """Return the time of an all_reduce within an order: nothing for what travels in rounds."""
        if nbytes <= SMALL_NBYTES or ranks == 1:
            return 0.0
        travels = 2 * (ranks - 1) / ranks * nbytes / self.rate
        return travels + 2 * hops(ranks) * self.latency_s + nbytes * self.reduce_s

    def all_reduce(self, nbytes: int, ranks: int) -> float:
        """Return the time of an all_reduce as an order of its own."""
        return self.rounds(CALL_ROUNDS, ranks) + self.reduction(nbytes, ranks)

    def whole(self, nbytes: int, ranks: int) -> float:
        """Return the time of a call that brings all hosts an array.

        One other host gets messages; several get a broadcast, which sends parts and gathers them.
        """
        first = self.wake_s + self.rounds(CALL_ROUNDS, ranks)
        if ranks == 2:
            return first + nbytes * (1 / self.rate + self.ship_s) + 2 * self.latency_s
        travels = 2 * (ranks - 1) / ranks * nbytes / self.rate
        return first + travels + (hops(ranks) + ranks - 1) * self.latency_s

    def shares(self, nbytes: int, ranks: int) -> float:
        """Return the time in which one link brings each other host its share of an array."""
        a_share = nbytes / ranks * (1 / self.rate + self.ship_s)
        return (ranks - 1) * (a_share + 2 * self.latency_s)

    def rows(self, nbytes: int, ranks: int) -> float:
        """Return the time of a call that brings each other host its share of an array."""
        return self.wake_s + self.rounds(CALL_ROUNDS, ranks) + self.shares(nbytes, ranks)


PREDICTED: dict[str, Callable[[Costs, int, int], float]] = {
    "order": lambda costs, _nbytes, ranks: costs.order(ranks),
    "all_reduce": Costs.all_reduce,
    WHOLE: Costs.whole,
    ROWS: Costs.rows,
}
"""By group: what the model says of a row."""


class Check(NamedTuple):
    """A row beside what the model says."""

    row: Row
    predicted: float

    @property
    def measured(self) -> float:
        """The quickest round."""
        return quickest(self.row)


def quickest(row: Row, name: str = OURS) -> float:
    """Return the least disturbed round: there are more ranks than cores."""
    return min(row.cells[name].samples)


def link_of(rows: Sequence[Row]) -> tuple[float, float]:
    """Return latency and rate of a link, measured by mpi4py's messages there and back.

    Raises:
        ValueError: they were not measured.
    """
    found = {row.nbytes: quickest(row, THEIRS) for row in rows if row.group == LINK}
    if 1 not in found or LARGE_NBYTES not in found:
        raise ValueError(f"the link was not measured: got {sorted(found)}, expected 1 and 16 MB")
    latency_s = found[1] / 2
    return latency_s, LARGE_NBYTES / (found[LARGE_NBYTES] / 2 - latency_s)


def fitted(rows: Sequence[Row], record_s: float) -> Costs:
    """Return the constants of a link, from the rows of two hosts: of the smallest, and largest."""
    costs = Costs(*link_of(rows), record_s=record_s)
    taken = {(row.group, row.nbytes): quickest(row) for row in rows if OURS in row.cells}

    def left(group: str, choose: Callable[[Iterable[int]], int]) -> tuple[float, int]:
        nbytes = choose(size for name, size in taken if name == group)
        return max(0.0, taken[group, nbytes] - PREDICTED[group](costs, nbytes, 2)), nbytes

    costs = replace(costs, round_s=left("order", min)[0] / ORDER_ROUNDS)
    rest_s, nbytes = left("all_reduce", max)
    costs = replace(costs, reduce_s=rest_s / nbytes)
    (few_s, few), (many_s, many) = left(ROWS, min), left(ROWS, max)
    if many > few:  # half of the rows are sent
        costs = replace(costs, ship_s=max(0.0, many_s - few_s) / ((many - few) / 2))
    return replace(costs, wake_s=left(ROWS, min)[0])


def checks(rows: Sequence[Row], constants: Mapping[str, Costs]) -> Iterator[Check]:
    """Yield each row that the model says something about, by its link's constants."""
    for row in rows:
        costs = constants.get(row.label)
        if costs and row.group in PREDICTED and OURS in row.cells:
            yield Check(row, PREDICTED[row.group](costs, row.nbytes, row.ranks))


class Network(NamedTuple):
    """A model to train.

    Attributes:
        parameters: float32 numbers, all in one all_reduce.
        step_s: of a rank's computation.
        row_nbytes: of the rows that a rank takes in a step.
    """

    name: str
    parameters: int
    step_s: float
    row_nbytes: int

    def parts(self, costs: Costs, ranks: int) -> dict[str, float]:
        """Return what a step takes on so many hosts, each rank with as many rows as one alone."""
        nbytes = 4 * self.parameters
        processor_s = costs.reduce_s * nbytes if ranks > 1 else 0.0
        return {
            COMPUTE: self.step_s,
            ORDER: costs.rounds(CALL_ROUNDS, ranks) if ranks > 1 else 0.0,
            LINKS: costs.reduction(nbytes, ranks) - processor_s,
            PROCESSOR: processor_s,
            SHARES: costs.shares(self.row_nbytes * ranks, ranks),
        }

    def efficiency(self, costs: Costs, ranks: int, without: Sequence[str] = ()) -> float:
        """Return the rows a second of each rank, beside those of one alone.

        Args:
            without: parts that take no time.
        """
        spent = sum(s for part, s in self.parts(costs, ranks).items() if part not in without)
        return self.step_s / spent


COMPUTE, ORDER, LINKS = "computes", "order", "all_reduce: links"
PROCESSOR, SHARES = "all_reduce: processor", "rows from the master"
VARIANTS = (
    ("the hosts have the rows", (SHARES,), "-"),
    ("... all_reduce on links alone", (SHARES, PROCESSOR), "--"),
    ("rows come from the master", (), ":"),
)
"""Names, the parts that take no time, and lines."""
NETWORKS = (
    Network("ResNet-50", 25_600_000, 36e-3, 64 * 3 * 224 * 224 * 4),
    Network("small", 1_000_000, 5e-3, 64 * 3 * 32 * 32 * 4),
)
RANKS = (8, 64, 1024)
MOST_RANKS = 1024


def beyond(costs: Costs, gbits: float, latency_s: float) -> Costs:
    """Return constants for another link; what the processor does is as it was measured."""
    return replace(costs, rate=gbits * 1e9 / 8, latency_s=latency_s)


def draw(links: dict[str, Costs], path: Path) -> None:
    """Write the picture: efficiency over ranks, a panel for each network.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "scaling"
    colours = ("#c8553d", "#d98c00", "#1b6ca8", "#7a9e3f")
    ranks = [2**power for power in range(int(math.log2(MOST_RANKS)) + 1)]
    figure, panels = plt.subplots(1, len(NETWORKS), figsize=(10, 4), sharey=True)
    for axes, network in zip(panels, NETWORKS):
        for colour, (name, costs) in zip(colours, links.items()):
            for place, (_, without, line) in enumerate(VARIANTS):
                values = [100 * network.efficiency(costs, n, without) for n in ranks]
                axes.plot(
                    ranks,
                    values,
                    line,
                    color=colour,
                    label=None if place or axes is not panels[0] else name,
                )
        axes.set_xscale("log", base=2)
        shown = ranks[::2]
        axes.set_xticks(shown, [f"{n:,}" for n in shown])
        axes.set_ylim(0, 102)
        axes.set_title(
            f"{network.name}: {network.parameters / 1e6:g} M parameters, "
            f"{network.step_s * 1e3:g} ms a step",
            fontsize=10,
        )
        axes.set_xlabel("ranks, one on each host")
        axes.grid(color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("rows a second of each rank,\n% of one rank alone")
    for name, _, line in VARIANTS:
        panels[0].plot([], [], line, color="#666666", label=name)
    places = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    figure.legend(ncols=2, fontsize=8.5, frameon=False, **places)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
