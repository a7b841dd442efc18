"""Ctrl-C, and giving up an order: interrupt the ranks that compute.

A rank that computes can be interrupted at once: it declines its next collective, and all ranks stay
in step. A rank that waits inside a collective cannot, because the ranks would lose each other. So a
Ctrl-C while the master waits first interrupts the ranks that compute; they decline, and the wait
ends.

If all ranks are done by then, the order is undone (see `Rank.take_back`), and an order that cannot
be undone returns its result: a `KeyboardInterrupt` from a call means that the call did not happen.
So none is raised between an order's end and the user's own code, but a moment later.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import pickle
import signal
import threading
import time
from typing import Any, Callable, Iterator, Optional, Sequence

from synk_core._shield import SHIELD
from synk_core._tracebacks import PACKAGES
from synk_core._watch.flight import OWN_WORK, Flight, Phase
from synk_core._wire.messages import GiveUp
from synk_core.exceptions import Interrupted

SIGNAL = signal.SIGRTMIN + 2 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Signal number that interrupts workers; programs and batch systems use the common ones."""

GRACE_S = 2.0
"""Seconds from Ctrl-C until workers that have not reacted are killed."""

AGAIN_S = 0.01
"""Seconds from a Ctrl-C that came at the wrong moment until it is tried again."""

LATEST_S = 0.25
"""Seconds of this thread's processor time after which Ctrl-C is raised wherever the program is.
From the end of an order to the user's code it takes much less."""

WORD_S = 0.5
"""Seconds from a Ctrl-C that reaches another host until the master's decision must be there."""

# Finalizers (`_died` is that of arrays in shared memory), and comparisons of keys: CPython's
# lookups by `PyDict_GetItem` drop all errors.
_LOSING = ("__del__", "_died", "__eq__", "__hash__")
_OF_WEAK_REFS = ("weakref", "_weakrefset")


def obey(rank: Any) -> None:
    """In a worker, install the handler by which the master interrupts its computation."""

    def interrupt(number: int, _frame: Any) -> None:
        if SHIELD.holds(number):
            return
        if rank.flight.interrupted == rank.serial and rank.flight.phase[0] in OWN_WORK:
            raise Interrupted

    signal.signal(SIGNAL, interrupt)


def obey_from_afar(rank: Any, channel: Any) -> None:
    """The same on another host, which the master's signals do not reach.

    The launcher brings Ctrl-C to all ranks. Whether it is to interrupt the order is the master's
    decision, whose message follows.
    """

    def interrupt(number: int, _frame: Any) -> None:
        if SHIELD.holds(number):
            return
        until = time.monotonic() + WORD_S
        while rank.flight.phase[0] in OWN_WORK and time.monotonic() < until:
            for payload in channel.take_all():
                word = pickle.loads(payload)
                if isinstance(word, GiveUp) and word.serial == rank.serial:
                    raise Interrupted
            time.sleep(AGAIN_S)

    signal.signal(signal.SIGINT, interrupt)


class DelayedInterrupt:
    """A Ctrl-C that came at the wrong moment and is raised later; one for all runtimes.

    Attributes:
        leaving: whether the main thread may be leaving this package with an order's result.
    """

    def __init__(self) -> None:
        self.leaving = False
        self._since: Optional[float] = None
        self._again = False
        # Held while a thread sets `_again` and sends the signal, so that no other call interferes.
        self._sending = threading.RLock()
        os.register_at_fork(after_in_child=self._reset_in_child)

    def _reset_in_child(self) -> None:
        self._sending = threading.RLock()  # a thread that is not in the child may hold the old one

    def put_off(self) -> None:
        """Raise Ctrl-C as soon as the program has left this package, or calls it again."""
        self.leaving = True
        self._since = since = time.thread_time()
        # A plain thread: starting a `threading.Thread` takes a lock, which may be taken here.
        _thread.start_new_thread(self._send_again, (since,))

    def _send_again(self, since: float) -> None:
        main = threading.main_thread().ident
        while main is not None:
            time.sleep(AGAIN_S)
            with self._sending:
                if self._since is not since:
                    return
                self._again = True
                signal.pthread_kill(main, signal.SIGINT)

    def _settle(self) -> bool:
        """Delay nothing any more; return whether a Ctrl-C was delayed."""
        with self._sending:
            pending, self._since = self.is_pending(), None
        return pending

    def at_the_next_chance(self) -> None:
        """Raise a delayed Ctrl-C; called where this thread enters the package.

        Raises:
            KeyboardInterrupt: one was delayed, and this is the main thread.
        """
        if threading.get_ident() == threading.main_thread().ident:
            self.leaving = False
            if self._since is not None and self._settle():
                raise KeyboardInterrupt

    def is_pending(self) -> bool:
        """Return whether a Ctrl-C is delayed."""
        return self._since is not None

    def take(self) -> bool:
        """Return whether the signal that has come is a delayed one."""
        with self._sending:
            again, self._again = self._again or self.is_pending(), False
        return again

    def is_the_moment(self, frame: Any, again: bool, within: bool = False) -> bool:
        """Return whether to raise a Ctrl-C that came at this frame; if not, delay it.

        Args:
            again: whether it was delayed before.
            within: whether it may be raised within this package.
        """
        if again and self._since is None:
            return False  # it has been raised already
        if _is_lost_at(frame) and (again or self._since is None):
            if self._since is None:
                self.put_off()
            return False
        module = frame.f_globals.get("__name__") if frame is not None else None
        if not within and self.leaving and str(module).partition(".")[0] in PACKAGES:
            if self._since is None:
                self.put_off()
                return False
            if time.thread_time() - self._since < LATEST_S:
                return False
        self.leaving = False
        self._settle()
        return True


LATER = DelayedInterrupt()


class _HoldingHandler:
    """A handler that holds one Ctrl-C back; a second one goes to `handler` at once."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.struck = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.struck:
            self.handler(number, frame)
        self.struck = True


@contextlib.contextmanager
def held_back(undo: Callable[[], None]) -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block; a second one has its effect at once.

    Blocking the signal is not enough: other threads, such as those of BLAS, would take it.

    Args:
        undo: called when Ctrl-C is raised, because the result of the block is lost then.
    """
    LATER.at_the_next_chance()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    holding = _HoldingHandler(handler)
    signal.signal(signal.SIGINT, holding)
    done = False
    try:
        yield
        done = True
    finally:
        signal.signal(signal.SIGINT, holding.handler)
        if holding.struck:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                if done:
                    undo()
                raise


class Interrupts:
    """The master's side.

    Args:
        rank: the master's `Rank`.
        flights: flight records of all ranks.
        interrupt: interrupts the workers, given the serial of the order.
        look: called before any rank is interrupted.
    """

    def __init__(
        self,
        rank: Any,
        flights: Sequence[Flight],
        interrupt: Callable[[int], None],
        look: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._flights = flights
        self._interrupt = interrupt
        self._look = look
        self._under_way = False
        self._serial = 0
        self._struck = False
        self._finished = False
        self._since: Optional[float] = None
        self._before: Optional[Interrupts] = None
        self._main = threading.main_thread().ident
        self._ended = False

    def install(self) -> None:
        """Handle Ctrl-C in place of Python's handler or another runtime's; a user's own stays.

        Called again and again, because notebooks set Python's own for each cell.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGINT)
        holding = current if isinstance(current, _HoldingHandler) else None
        current = holding.handler if holding else current
        before = link = _runtime_of(current)
        while link is not None:
            if link is self:
                return  # it is in the chain of handlers already
            link = link._before
        if before is not None or current is signal.default_int_handler:
            self._before = before
            if holding:
                holding.handler = self._on_ctrl_c
            else:
                signal.signal(signal.SIGINT, self._on_ctrl_c)

    def restore(self) -> None:
        """Restore the handler of before; the runtime has ended. A delayed Ctrl-C comes first."""
        self._ended = True
        if not LATER.is_pending():
            self._give_back()

    def _give_back(self) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) == self._on_ctrl_c
        ):
            before = self._living_before()
            handler = before._on_ctrl_c if before else signal.default_int_handler
            signal.signal(signal.SIGINT, handler)

    def _living_before(self) -> Optional[Interrupts]:
        """Return the open runtime whose handler this one's replaced, if there is one."""
        before = self._before
        while before is not None and before._ended:
            before = before._before
        return before

    def begin(self, serial: int) -> None:
        """Begin an order, in this thread."""
        self._since, self._struck, self._finished, self._serial = None, False, False, serial
        # Ctrl-C interrupts the main thread, never an order of another one.
        self._under_way = threading.get_ident() == self._main

    def finish(self) -> bool:
        """Return whether there was a Ctrl-C, now that all ranks have done the order.

        A Ctrl-C that comes after this waits until the order's end.
        """
        self._finished = True
        if self._under_way:
            LATER.leaving = True
        return self._since is not None

    def end(self) -> bool:
        """End an order; return whether there was a Ctrl-C that is still to be raised."""
        self._under_way = False
        pending, self._since = self._since is not None, None
        return pending

    def check(self) -> None:
        """Return while the wait may go on; called while the master waits.

        Raises:
            KeyboardInterrupt: some workers have not reacted to a Ctrl-C.
        """
        if self._since is None:
            return
        if any(flight.phase[0] == Phase.DEVICE for flight in self._flights):
            self._since = time.monotonic()  # nothing interrupts a device
        elif time.monotonic() - self._since > GRACE_S:
            raise KeyboardInterrupt

    def give_up(self, error: BaseException) -> Optional[float]:
        """Interrupt the workers, because the master has failed.

        Returns:
            Seconds to wait for them; None for as long as for any collective.
        """
        self._look()
        self._interrupt_workers()
        return None if isinstance(error, Exception) else GRACE_S

    def _on_ctrl_c(self, number: int, frame: Any) -> None:
        if SHIELD.holds(number):
            return
        self._handle(number, frame, LATER.take())

    def _handle(self, number: int, frame: Any, again: bool) -> None:
        if not self._under_way or os.getpid() != self._rank.pid:
            before = self._living_before()
            if before is not None:
                if self._ended:
                    self._give_back()
                before._handle(number, frame, again)
            elif os.getpid() != self._rank.pid or LATER.is_the_moment(frame, again):
                if self._ended:
                    self._give_back()
                signal.default_int_handler(number, frame)
            return
        if self._finished:
            self._since = time.monotonic()
            return
        if self._struck or self._rank.flight.phase[0] in OWN_WORK:
            self._struck = True
            if LATER.is_the_moment(frame, again, within=True):
                signal.default_int_handler(number, frame)
            return
        self._struck = True
        self._since = time.monotonic()
        self._look()
        self._interrupt_workers()

    def _interrupt_workers(self) -> None:
        for flight in self._flights:
            flight.interrupted = self._serial
        self._interrupt(self._serial)


def _is_lost_at(frame: Any) -> bool:
    """Return whether an exception would be lost: in a finalizer, or when keys are compared."""
    while frame is not None:
        if frame.f_code.co_name in _LOSING or frame.f_globals.get("__name__") in _OF_WEAK_REFS:
            return True
        frame = frame.f_back
    return False


def _runtime_of(handler: Any) -> Optional[Interrupts]:
    """Return the object whose method a signal handler is, if it is one of these."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, Interrupts) else None
