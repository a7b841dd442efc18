"""What synk-shm aims at, and whether it got there.

A target is about one row: either a ratio of ours to a named peer, or a plain number of ours.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from .contenders import OURS, NumPy, RawArray, SharedArray, Stdlib
from .results import Ratio, Result, Row, ratio

BEST = "best peer"
YES, NO, UNKNOWN = "yes", "no", "-"


@dataclass(frozen=True)
class Target:
    """At most, or at least, so much.

    Attributes:
        key: of the row.
        limit: of the ratio, or of our number if `peer` is empty.
        peer: who it is compared with, or `BEST`, or empty.
        ours: which of our contenders has to get there.
        at_least: the other way round.
    """

    key: str
    limit: float
    peer: str = ""
    ours: str = OURS
    at_least: bool = False

    @property
    def text(self) -> str:
        """As in a table, where the peer has a column: <= 0.85x."""
        sign = ">=" if self.at_least else "<="
        if not self.peer:
            return f"ours {sign} {_number(self.limit)}"
        return f"{sign} 1/{round(1 / self.limit)}" if self.limit < 0.01 else f"{sign} {self.limit}x"


@dataclass(frozen=True)
class Verdict:
    """A row seen with one target, or with none.

    Attributes:
        ours: which of our contenders it is about.
        peer: who the ratio is to; empty if there is no ratio.
        ratio: ours to that peer's; None if one of the two has no number.
        target: its text, empty if there is none.
        limit: of the ratio; None if the target is a plain number.
        reached: `YES`, `NO`, `UNKNOWN` (not measured), or empty without a target.
        close: whether the limit lies within the middle half of the rounds: luck decides.
    """

    row: Row
    ours: str = OURS
    peer: str = ""
    ratio: Ratio | None = None
    target: str = ""
    limit: float | None = None
    reached: str = ""
    close: bool = False


MILLISECOND = 1e-3

TARGETS: tuple[Target, ...] = (
    Target("create/1K", 1.6, SharedArray.name),
    Target("create/1K", 0.75, Stdlib.name),
    Target("create/1M", 0.95, SharedArray.name),
    Target("create/large", 0.6, SharedArray.name),
    Target("again/1K", 0.6, SharedArray.name),
    Target("again/1M", 1.2, RawArray.name),
    Target("share/1M", 0.7, SharedArray.name),
    Target("share/large", 0.65, SharedArray.name),
    Target("attach/1K", 1.8, SharedArray.name),
    Target("attach/1K", 0.7, Stdlib.name),
    Target("bytes/message", 120),
    Target("bytes/handle", 120),
    Target("bytes/view", 120),
    Target("pass/1K", 0.85, Stdlib.name),
    Target("pass/1M", 0.85, Stdlib.name),
    Target("pass/large", 0.85, Stdlib.name),
    Target("pass/large", 1 / 5000, NumPy.name),
    Target("handle/1K", 0.85, Stdlib.name),
    Target("handle/1M", 0.85, Stdlib.name),
    Target("handle/large", 0.85, Stdlib.name),
    # Equal to ordinary memory; faster is no failure.
    Target("compute/sum", 1.03, NumPy.name),
    Target("compute/add", 1.03, NumPy.name),
    Target("compute/fill", 1.03, NumPy.name),
    Target("compute/gather", 1.03, NumPy.name),
    Target("compute/small", 1.03, NumPy.name),
    Target("grow/large", 0.35, BEST),
    # From 3.13 on Python can map a file without keeping a descriptor for it.
    Target("arrays/1024", 0.95, SharedArray.name, at_least=True)
    if sys.version_info >= (3, 13)
    else Target("arrays/1024", 1000, at_least=True),
    Target("import/time", 3 * MILLISECOND),
    Target("import/helpers", 0),
    Target("left/creator", 0),
    Target("left/group-next", 0),
    Target("left/exit", 0),
    Target("left/complaints", 0),
    Target("sigbus/dies", 0),
)


def judge(result: Result) -> list[Verdict]:
    """Every row with each of its targets; a row without one is compared to its best peer."""
    verdicts: list[Verdict] = []
    for row in result.rows:
        own = [target for target in TARGETS if target.key == row.key]
        if any(target.ours != OURS for target in own) or not own:
            verdicts.append(_beside_best(row, result))
        verdicts += [_verdict(row, target, result) for target in own]
    return verdicts


def _beside_best(row: Row, result: Result) -> Verdict:
    best = row.best(result.peers)
    found = ratio(row, OURS, best) if best else None
    return Verdict(row, peer=best if best and found else "", ratio=found)


def _verdict(row: Row, target: Target, result: Result) -> Verdict:
    if not target.peer:
        beside = _beside_best(row, result)
        value = row.value(target.ours)
        reached = UNKNOWN if value is None else YES if _holds(target, value) else NO
        return Verdict(row, target.ours, beside.peer, beside.ratio, target.text, None, reached)
    peer = row.best(result.peers) if target.peer == BEST else target.peer
    found = ratio(row, target.ours, peer) if peer else None
    if found is None:
        return Verdict(row, target.ours, peer or "", None, target.text, target.limit, UNKNOWN)
    reached = YES if _holds(target, found.value) else NO
    close = found.low < target.limit < found.high
    return Verdict(row, target.ours, peer or "", found, target.text, target.limit, reached, close)


def _holds(target: Target, value: float) -> bool:
    if math.isnan(value):
        return False
    return value >= target.limit if target.at_least else value <= target.limit


def _number(limit: float) -> str:
    return f"{limit * 1e3:g} ms" if 0 < limit < 1 else f"{limit:g}"
