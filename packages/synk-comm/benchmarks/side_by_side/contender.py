"""What every contender is: a way for ranks to talk to each other, with one method a collective."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from synk_benchmarks.results import NotOfferedError

from .cases import Case

OURS = "synk-comm"
OVER_MPI = "synk-comm over MPI"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class World:
    """A rank, the folder of its job alone, and its means to talk to the others besides."""

    rank: int
    size: int
    folder: Path
    control: Any

    def share(self, value: Any) -> list[Any]:
        """Give a value, and return when all ranks have: everybody's, in rank order."""
        control = self.control
        gather = getattr(control, "all_gather_object", None) or control.allgather  # mpi4py's
        shared: list[Any] = gather(value)
        return shared

    def first(self, text: str) -> str:
        """Return the first text of any rank that is not empty."""
        return next(filter(None, self.share(text)), "")


@dataclass
class Act:
    """One collective, ready to be called again and again.

    `x` and `out` are the same array if it works in place. The thing to be timed happens so many
    `trips` in one call; `checked` says whether `out` holds a result that can be compared.
    """

    call: Callable[[], object]
    x: Any
    out: Any
    trips: int = 1
    checked: bool = True


class Contender:
    """One way to do collectives. What a subclass does not offer, it leaves out.

    For each collective it offers it has a method of the metric's name, from a `Case` to an `Act`.
    ``--only`` takes its name; `broken` says why it can do nothing any more.
    """

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broken = ""

    @classmethod
    def missing(cls) -> str:
        """Return why it cannot take part here, and what would help; empty if it can."""
        return ""

    def close(self) -> None:
        """Free what it took."""

    def wait(self) -> object:
        """Return when all ranks have entered."""
        raise NotImplementedError

    def barrier(self, case: Case) -> Act:
        """Return the metric of this name."""
        return Act(self.wait, case.x, case.out, checked=False)

    def prepare(self, case: Case) -> Act:
        """Make ready, on all ranks at once, or raise NotOfferedError on all of them."""
        if self.broken:
            raise NotOfferedError(self.broken)
        method = getattr(self, case.op, None)
        if method is None:
            raise NotOfferedError("not offered")
        act: Act = method(case)
        return act


def ping_pong(
    case: Case, send: Callable[[Any, int], object], recv: Callable[[Any, int], object]
) -> Act:
    """Return an act in which ranks 0 and 1 send an array to and fro: one call is two trips."""

    def serve() -> None:
        send(case.x, 1)
        recv(case.out, 1)

    def answer() -> None:
        recv(case.out, 0)
        send(case.out, 0)

    def look_on() -> None:
        pass

    return Act((serve, answer)[case.rank] if case.rank < 2 else look_on, case.x, case.out, trips=2)
