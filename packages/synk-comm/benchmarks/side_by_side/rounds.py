"""Take turns on one rank, in step with the others, and check the results."""

from __future__ import annotations

from synk_benchmarks.contender import FAILED, NotOfferedError, failure
from synk_benchmarks.results import Cell
from synk_benchmarks.rounds import calls_for, timed, turns

from .cases import Case
from .contender import Act, Contender, World

BUDGET_S, QUICK_BUDGET_S = 10e-3, 3e-3
"""Seconds of back-to-back calls in one turn, as far as one call is shorter."""


class Rounds:
    """Measures cases on this rank, in step with the others.

    Attributes:
        rounds: how many.
        budget_s: how long a turn's back-to-back calls may take together.
    """

    def __init__(self, world: World, rounds: int, budget_s: float) -> None:
        self._share = world.line.share
        self.rounds = rounds
        self.budget_s = budget_s

    def measure(self, case: Case, contenders: list[Contender]) -> dict[str, Cell]:
        """Check everybody's result once, then time everybody in every round.

        Returns:
            By contender: seconds of one call, the longest of all ranks, for each round.
        """
        notes: dict[str, str] = {}
        ready: list[tuple[Contender, Act, int]] = []
        for contender in contenders:
            act = self._prepared(contender, case, notes)
            if act is not None:
                ready.append((contender, act, self._calls(contender, act)))
        samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for _, (contender, act, calls) in turns(ready, self.rounds):
            seconds = self._turn(contender, act, calls)
            samples[contender.name].append(seconds / act.trips)
        return {name: Cell(tuple(taken), notes.get(name, "")) for name, taken in samples.items()}

    def _prepared(self, contender: Contender, case: Case, notes: dict[str, str]) -> Act | None:
        """Return an act that is ready to be timed; or None with a note, on all ranks alike."""
        act, refused = None, ""
        try:
            act = contender.prepare(case)
        except NotOfferedError as reason:
            refused = str(reason) or "not offered"
        except Exception as error:  # noqa: BLE001 (one that fails must not end the run)
            refused = failure(error)
        refused = self._first(refused)
        if act is None or refused:
            self._drop(contender, refused, notes)
            return None
        wrong = ""
        case.fill(act.x, act.out)
        self._share(None)
        try:
            act.call()
            wrong = case.wrong(act.out) if act.checked else ""
        except Exception as error:  # noqa: BLE001 (the same)
            wrong = failure(error)
        wrong = self._first(wrong)
        if wrong:
            self._drop(contender, wrong, notes)
            return None
        case.rest(act.x, act.out)
        return act

    def _drop(self, contender: Contender, why: str, notes: dict[str, str]) -> None:
        """Leave it out of this case; of all others too if it raised, since its group is gone."""
        notes[contender.name] = why
        if why.startswith(FAILED):
            contender.broken = why

    def _first(self, text: str) -> str:
        """Return the first text of any rank that is not empty."""
        return next(filter(None, self._share(text)), "")

    def _calls(self, contender: Contender, act: Act) -> int:
        """Return how many calls fill a turn, the same on all ranks."""
        return calls_for(
            self.budget_s, lambda calls: self._turn(contender, act, calls), 2 * self.budget_s
        )

    def _turn(self, contender: Contender, act: Act, calls: int) -> float:
        """Return the slowest rank's seconds of one call, out of many in a row, on every rank."""
        self._share(None)
        contender.wait()
        contender.wait()
        slowest: float = max(self._share(timed(act.call, calls)))
        return slowest
