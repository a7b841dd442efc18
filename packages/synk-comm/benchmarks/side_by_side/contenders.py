"""Who takes part in what."""

from __future__ import annotations

from synk_benchmarks.contender import failure

from .contender import Contender, World
from .metrics import GLOO, MPICH, OURS
from .ours import Loop, Synk, SynkZmq
from .peers import Copy, Gloo, Mpich

# By the name of the column.
CONTENDERS: dict[str, type[Contender]] = {OURS: Synk, MPICH: Mpich, GLOO: Gloo}


class Field:
    """The contenders of one rank, made when they are first needed."""

    def __init__(self, world: World, names: list[str]) -> None:
        self._world = world
        self._peers = [self._made(CONTENDERS[name]) for name in names if name != OURS]
        self._synk = Synk(world)
        self._zmq: Contender | None = None

    def of(self, metric: str) -> list[Contender]:
        """Return who takes part in this, in the order of the columns."""
        if metric == "all_reduce_zmq":
            if self._zmq is None:
                self._zmq = self._made(SynkZmq)
            # The others' way through memory would be another race.
            return [self._zmq, *(peer for peer in self._peers if peer.name == GLOO)]
        everyone = [self._synk, *self._peers]
        if metric not in ("barrier", "mismatch"):  # Python's barrier has processes of its own
            everyone.append((Loop if metric == "fused" else Copy)(self._world, self._synk))
        return everyone

    def _made(self, kind: type[Contender]) -> Contender:
        """Return the contender; or in its place, on all ranks, one that says why there is none."""
        failed = ""
        made: Contender | None = None
        try:
            made = kind(self._world)
        except Exception as error:  # noqa: BLE001 (one that fails must not end the run)
            failed = failure(error)
        said = next(filter(None, self._world.line.share(failed)), "")
        if made is not None and not said:
            return made
        absent = Contender(self._world)
        absent.name, absent.broken = kind.name, said
        return absent

    def close(self) -> None:
        """Close all of them, ours first: none waits for another."""
        for contender in (self._zmq, self._synk, *self._peers):
            if contender is not None:
                contender.close()
