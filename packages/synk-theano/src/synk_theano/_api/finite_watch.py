"""The sentinels of a runtime, as the master starts and stops them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Sequence

from synk_theano._api.replica_watch import ReplicaWatch, Runner, Writers
from synk_theano._graph.facts import Event
from synk_theano._rank.rank import Rank
from synk_theano._text import shown
from synk_theano._watch.history import History
from synk_theano._wire.messages import WatchFinite
from synk_theano._workers.interrupts import LATER
from synk_theano.exceptions import InputTypeError


class FiniteWatch:
    """All ranks look, or look no more, whether what they compute is finite.

    Made by `synkhronos.watch_finite`. A context manager: at the end of the block it is again as it
    was before.

    Attributes:
        on: what was asked for.
    """

    def __init__(self, sentinels: Sentinels, on: bool, before: bool) -> None:
        self.on = on
        self._sentinels = sentinels
        self._before = before
        self._stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "on" if self.on else "off"
        return f"<FiniteWatch, {state}>"

    def __enter__(self) -> FiniteWatch:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Make it as it was before; blocks until all ranks know. Idempotent, and harmless when the
        runtime is closed."""
        if not self._stopped:
            self._stopped = True
            self._sentinels.put_back(self._before)


class Sentinels:
    """What watches the program of one runtime.

    Args:
        runner: the runtime.
        rank: the master's.
        history: what was done.

    Attributes:
        watches: those of replicas, some of which may have ended.
    """

    def __init__(self, runner: Runner, rank: Rank, history: History) -> None:
        self._runner = runner
        self._rank = rank
        self._history = history
        self._writers = Writers(history)
        self.watches: List[ReplicaWatch] = []

    def watch_replicas(self, shared_vars: Any, every: Any, action: Any) -> ReplicaWatch:
        """Compare variables from now on."""
        watch = ReplicaWatch(self._runner, self._writers, shared_vars, every, action)
        self.watches.append(watch)
        return watch

    def called(self, events: Sequence[Event]) -> None:
        """An order is done; the caller has the turn. What is not the program's does not count."""
        if not self._history.on:
            return
        self.watches = [watch for watch in self.watches if watch.watching]
        if any(event.kind == "call" for event in events):
            try:
                for watch in self.watches:
                    watch.called()
            except KeyboardInterrupt:  # the order itself is done
                LATER.put_off()

    def watch_finite(self, on: Any) -> FiniteWatch:
        """Have all ranks look from now on, or not any more."""
        if not isinstance(on, bool):
            raise InputTypeError(f"watch_finite(): on: got {shown(on)}, expected True or False")
        with self._runner.exclusive:
            return FiniteWatch(self, on, self._look(on))

    def put_back(self, on: bool) -> None:
        """What `watch_finite` has changed is to be as before."""
        if not self._runner.closed:
            with self._runner.exclusive:
                self._look(on)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let what is not the program's compute what it will; the caller has the turn."""
        if self._rank.finite[0] is None:
            yield
            return
        self._look(False)
        try:
            yield
        finally:
            if not self._runner.closed:
                self._look(True)

    def _look(self, on: bool) -> bool:
        """Returns whether the ranks looked before."""
        was_on: bool = self._runner.run_alone(WatchFinite(on), "watch_finite()", WatchFinite(on))
        return was_on
