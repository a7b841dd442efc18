"""Measure the time of each call, always: it costs a few additions.

Every rank writes its seconds of computing into shared memory before the collective that ends an
order; the master reads them after that. Ranks of other hosts log theirs until the master gathers
the logs. The rest of the time is that of collecting results and sending orders.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict, deque
from contextlib import suppress
from functools import partial
from operator import add
from typing import Any, Deque, Dict, NamedTuple, Optional, Sequence, Tuple

from synk_core._features.feature import RuntimeFeature
from synk_core._graph.spec import unnamed
from synk_core._master.record import Record
from synk_core._plan.arguments import checked_flag
from synk_core._rank.workplace import LOGGED, LoggedTimes, Workplace
from synk_core._wire.flight import Phase
from synk_core._wire.messages import DISTRIBUTE, Call, Own, Prefetch
from synk_core.exceptions import NestedCall

_TITLES = ("calls", "total", "scatter", "compute", "wait", "reduce", "input MB", "slowest rank")

GONE = "(gone)"
"""Name of the line for deleted functions without a name."""


class FunctionStats(NamedTuple):
    """The figures of one function, or of one kind of collective, since the last reset.

    Attributes:
        calls: how often it ran.
        scatter_s: seconds in which the master checked, planned and copied inputs.
        compute_s: seconds in which the master computed.
        wait_s: seconds for which a slower rank computed after the master had.
        reduce_s: the rest: orders, collecting results, barriers.
        input_bytes: of inputs that ranks read, counted once however many ranks read them.
        slowest: by rank, how often it was the one that computed longest.
        graph: "replayed" if the master replays it as a CUDA graph, or why not; "" on processors.
        ranks_s: seconds in which ranks computed, of all ranks together.
        proof: the last call that was proved, and how; "" for none.
    """

    calls: int
    scatter_s: float
    compute_s: float
    wait_s: float
    reduce_s: float
    input_bytes: int
    slowest: Tuple[int, ...]
    graph: str = ""
    ranks_s: float = 0.0
    proof: str = ""

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return self.scatter_s + self.compute_s + self.wait_s + self.reduce_s


class Stats(Dict[str, FunctionStats]):
    """`FunctionStats` by name of function, or of collective as in ``all_reduce()``.

    Printed, at a prompt, in a notebook or by rich it is a table.

    Attributes:
        precision: of float32 on CUDA devices: "default", "float32" or "tf32"; "" on others.
    """

    precision = ""

    @property
    def speed_up(self) -> float:
        """How many times as much all ranks computed as one alone could have in the same time.

        Seconds of computing, of all ranks together, by `total_s`, without ``distribute()``. It is
        the best case: cores that share a memory, or have other work, are slower side by side than
        one alone, and waits of in-graph reductions count as computing. NaN without calls, and on
        CUDA devices, where seconds of computing are those of launching work.
        """
        items = [item for name, item in self.items() if name != DISTRIBUTE]
        total_s = sum(item.total_s for item in items)
        computed_s = sum(item.ranks_s for item in items)
        return computed_s / total_s if computed_s and not self.precision else math.nan

    def _summary(self) -> str:
        """Return the line below the table, "" for none."""
        if self.precision:
            return f"float32 on GPUs: precision={self.precision!r}"
        speed_up = self.speed_up
        if math.isnan(speed_up) or any(len(item.slowest) < 2 for item in self.values()):
            return ""
        advice = ": give each call more to compute" if speed_up < 1 else ""
        return f"at best {speed_up:.2f} times as fast as one rank alone{advice}"

    def __rich__(self) -> Any:
        from rich.table import Table

        caption = self._summary() or None
        table = Table("", box=None, pad_edge=False, header_style="bold", caption=caption)
        table.caption_justify = "left"
        for title in _TITLES:
            table.add_column(title, justify="right", no_wrap=True)
        more = []
        for title, name in (("CUDA graph", "graph"), ("proved", "proof")):
            if any(getattr(item, name) for item in self.values()):
                table.add_column(title)
                more.append(name)
        for label, item in self.items():
            times = (item.total_s, item.scatter_s, item.compute_s, item.wait_s, item.reduce_s)
            cells = [label, str(item.calls), *(f"{seconds:.3f} s" for seconds in times)]
            cells.append(f"{item.input_bytes / 1e6:.1f}")
            ranks, most = item.slowest, max(item.slowest, default=0)
            cells.append(f"{ranks.index(most)} ({most / sum(ranks):.0%})" if most else "-")
            table.add_row(*cells, *(getattr(item, name) for name in more))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        # Wide enough for every row; a terminal wraps long lines.
        console = Console(file=io.StringIO(), width=1000, color_system=None, force_jupyter=False)
        console.print(self, markup=False)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


class Tally:
    """The sums behind a `FunctionStats`, with the names of its fields."""

    def __init__(self, size: int) -> None:
        self.calls = self.input_bytes = 0
        self.scatter_s = self.compute_s = self.wait_s = self.reduce_s = self.ranks_s = 0.0
        self.slowest = [0] * size

    def take(self, other: Tally) -> None:
        """Add the sums of another tally."""
        mine = vars(self)
        for name, value in vars(other).items():
            both = mine[name], value
            mine[name] = list(map(add, *both)) if name == "slowest" else sum(both)


class Ledger:
    """All tallies of a runtime; `is_whole`: all ranks are on its host, so that it sees all times.

    Attributes:
        incomplete: calls that lack the times of other hosts: serial of the order, number in it,
            tally, seconds of the slowest rank so far, that rank; and the tally that has the seconds
            of their order that are nobody's.
    """

    def __init__(self, size: int, master: int, is_whole: bool = True) -> None:
        self._size = size
        self._master = master
        self._is_whole = is_whole
        self.incomplete: Deque[Tuple[int, int, Tally, float, int, Tally]] = deque(maxlen=LOGGED)
        self._tallies: Dict[str, Tally] = defaultdict(partial(Tally, size))

    def forget_function(self, function_id: int) -> None:
        """Drop a deleted function; add the figures of one without a name to `GONE`."""
        tally = self._tallies.pop(unnamed(function_id), None)
        if tally is not None:
            self._tallies[GONE].take(tally)

    def after(self, record: Record) -> None:
        """Add the figures of an order; those shared by its acts count with the last act that is no
        prefetch, or with the first one. Acts without a label are not counted."""
        size, run_s = self._size, record.run_s
        incomplete = []
        last: Optional[Tally] = None
        for place, prepared in enumerate(record.acts):
            act, label = prepared.act, prepared.label
            if label is None:
                continue
            tally = self._tallies[label]
            if isinstance(act, Prefetch):
                last = last or tally
                continue
            last = tally
            tally.calls += 1
            tally.input_bytes += prepared.nbytes
            if not isinstance(act, Call):
                continue
            ranks = record.times[place * size : (place + 1) * size].tolist()
            longest = max(ranks, default=0.0)  # there is no room for the times of all long steps
            if longest > 0:
                slowest, own = ranks.index(longest), ranks[self._master]
                tally.slowest[slowest] += 1
                if not self._is_whole:
                    incomplete.append((record.serial, place, tally, longest, slowest))
                tally.compute_s += own
                tally.wait_s += longest - own
                tally.ranks_s += sum(ranks)
                run_s -= longest
        if last is not None:
            last.scatter_s += record.scatter_s
            last.reduce_s += max(run_s, 0.0)
            for call in incomplete:
                self.incomplete.append((*call, last))

    def complete(self, logs: Sequence[Sequence[LoggedTimes]]) -> None:
        """Count the times that ranks have logged: none on the master's host."""
        by_rank = {rank: dict(log) for rank, log in enumerate(logs) if log}
        for serial, place, tally, longest, slowest, last in self.incomplete:
            for rank, log in by_rank.items():
                seconds = log[serial][place] if serial in log else 0.0
                tally.ranks_s += seconds
                if seconds > longest:
                    tally.slowest[slowest] -= 1
                    tally.slowest[rank] += 1
                    tally.wait_s += seconds - longest
                    last.reduce_s = max(last.reduce_s - (seconds - longest), 0.0)
                    longest, slowest = seconds, rank
        self.incomplete.clear()

    def stats(self, reset: bool) -> Stats:
        """Return the figures since the last reset; with `reset` start again from zero."""
        tallies = self._tallies.copy()  # in one go: another thread may call a new function
        for name in tallies if reset else ():
            self._tallies.pop(name, None)
        return Stats(
            (name, FunctionStats(**{**vars(tally), "slowest": tuple(tally.slowest)}))
            for name, tally in tallies.items()
            if tally.calls
        )


def stats(here: Workplace, argument: None) -> Any:  # noqa: ARG001 - as of any act
    """On every rank: return in the master the seconds that ranks of other hosts have logged."""
    here.flight.enter(Phase.COLLECTIVE)
    logs = here.comm.gather_object(list(here.log), root=here.master)
    here.log.clear()
    return logs


class Statistics(RuntimeFeature):
    """Keeps the figures of all orders."""

    def _begin(self) -> None:
        super()._begin()
        is_whole = self._rank.mirror is None
        self._ledger = Ledger(self.orders.size, self.orders.master, is_whole)
        self.orders.observers.add(self._ledger)

    def stats(self, reset: bool = False) -> Stats:
        """Return the times of calls; see `synkhronos.stats`."""
        if self._ledger.incomplete and not self.orders.closed:
            # Within a call the figures of other hosts are left for later.
            with suppress(NestedCall), self.orders.lock:
                self._ledger.complete(self.orders.perform_own(Own(stats), label=None))
        found = self._ledger.stats(checked_flag(reset, "reset"))
        for loaded in list(self._rank.functions.values()):
            name = loaded.recipe.name
            if name in found:
                found[name] = found[name]._replace(graph=loaded.replay)
        for function in self.orders.garbage.watched():
            name, report = function.label, getattr(function, "proof", None)
            if name in found and report is not None:
                how = f"call {report.call}" + f", {report.how}" * (report.how != "whole")
                found[name] = found[name]._replace(proof=how if report.ok else f"{how}: WRONG")
        found.precision = self._rank.device.precision
        return found
