"""Ctrl-C, and giving up an order.

A rank that computes can be interrupted: it declines its next collective. A rank that waits in one
cannot, because the ranks would lose each other. So Ctrl-C while the master waits interrupts the
ranks that compute, which ends the wait. If all ranks are done by then, the order is undone (see
`Rank.take_back`), or returns its result: a `KeyboardInterrupt` from a call means that the call did
not happen. So none is raised between an order's end and the user's own code, but a moment later.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal.getsignal() takes 3 us of each call
import _thread
import gc
import os
import signal
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, TypeVar

from synk_core._shield import SHIELD
from synk_core._tracebacks import PACKAGES
from synk_core._wire.flight import OWN_WORK, Flight, Phase
from synk_core.exceptions import Interrupted

SIGNAL = int(signal.SIGRTMIN) + 2
"""Signal number that interrupts workers; programs and batch systems use the common ones."""

GRACE_S = 2.0
"""Seconds from Ctrl-C until workers that have not reacted are killed."""

AGAIN_S = 0.01
"""Seconds from a Ctrl-C that came at the wrong moment until it is tried again."""

LATEST_S = 0.25
"""Seconds of this thread's processor time after which Ctrl-C is raised wherever the program is:
much more than from the end of an order to the user's code."""

WORD_S = 0.5
"""Seconds that another host waits after Ctrl-C for the master's decision."""

HELD_S = 5.0
"""Seconds from a Ctrl-C that waits in `whole` until a further one has its effect."""

_UNDIVIDED = ("__enter__", "__exit__", "leave", "whole")
"""Functions of ours that Ctrl-C may not divide, such as those that take and release a guard."""

_COMM = ("synk_comm",)

_SIGINT = int(signal.SIGINT)

T = TypeVar("T")

# Finalizers (`_died` is that of arrays in shared memory), and comparisons of keys, whose errors
# `PyDict_GetItem` drops.
_LOSING = ("__del__", "_died", "__eq__", "__hash__")
_OF_WEAK_REFS = ("weakref", "_weakrefset")


def obey(rank: Any, channel: Any = None) -> None:
    """In a worker, install the handler by which the master interrupts its computation.

    Another host gets Ctrl-C from the launcher, and from a channel the number of the order.
    """

    def interrupt(number: int, frame: Any) -> None:
        if _waits(number, frame):
            return
        flight, until = rank.flight, time.monotonic() + WORD_S
        while flight.phase[0] in OWN_WORK and time.monotonic() < until:
            for payload in channel.take_all() if channel else ():
                flight.interrupted = int.from_bytes(payload, "little")
            if flight.interrupted == rank.serial:
                raise Interrupted
            if not channel:
                return
            time.sleep(AGAIN_S)

    signal.signal(signal.SIGINT if channel else SIGNAL, interrupt)


class CtrlC:
    """Handles Ctrl-C for all runtimes; raises one later that comes at the wrong moment.

    Attributes:
        leaving: whether the main thread may be leaving this package with an order's result.
        runtimes: the open ones that have been at work in the main thread.
        main: identifies the main thread.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.leaving = False
        self.runtimes: List[Interrupts] = []
        self._since: Optional[float] = None
        self._again = False
        # Held while a thread sets `_again` and sends the signal. A thread that is not in the child
        # of a fork may hold the old one.
        self._sending = threading.RLock()
        self.main = threading.main_thread().ident or 0

    def put_off(self) -> None:
        """Raise Ctrl-C as soon as the program has left this package, or calls it again."""
        self.leaving = True
        self._since = since = time.thread_time()
        # A plain thread: `threading.Thread.start` takes a lock that may be taken here.
        _thread.start_new_thread(self._send_again, (since,))

    def _send_again(self, since: float) -> None:
        while True:
            time.sleep(AGAIN_S)
            with self._sending:
                if self._since is not since:
                    return
                self._again = True
                signal.pthread_kill(self.main, signal.SIGINT)

    def settle(self) -> None:
        """End the delay of a Ctrl-C, if there is one."""
        with self._sending:
            self._since = None

    def at_the_next_chance(self) -> None:
        """Raise a delayed Ctrl-C, where the main thread enters the package."""
        if getattr(_signal.getsignal(_SIGINT), "ends", True) is False:
            return  # within `whole`
        if _thread.get_ident() == self.main:
            self.leaving = False
            if self._since is not None:
                self.settle()
                raise KeyboardInterrupt

    def is_pending(self) -> bool:
        """Return whether a Ctrl-C is delayed."""
        return self._since is not None

    def give_back(self) -> None:
        """Restore Python's handler, if no runtime needs this one and no Ctrl-C is delayed."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not self.runtimes and not self.is_pending() and _replace() == self.handle:
            _replace(signal.default_int_handler)

    def handle(self, number: int, frame: Any) -> None:
        """Handle the signal."""
        if SHIELD.holds(number):
            return
        with self._sending:
            again, self._again = self._again or self.is_pending(), False
        if again and not self.is_pending():
            return  # it has been raised already
        order = next((one for one in reversed(self.runtimes) if one.is_under_way), None)
        if order is not None and order.waits(again):
            return
        if self._is_the_moment(frame, within=order is not None):
            self.give_back()
            signal.default_int_handler(number, frame)

    def _is_the_moment(self, frame: Any, within: bool) -> bool:
        """Return whether to raise a Ctrl-C that came at this frame, `within` this package too; if
        not, delay it."""
        delays = _is_undivided(frame, _COMM if within else (*_COMM, *PACKAGES))
        delays = delays or _is_lost_at(frame)
        module = frame.f_globals.get("__name__") if frame is not None else None
        if self.leaving and not within and str(module).partition(".")[0] in PACKAGES:
            delays |= self._since is None or time.thread_time() - self._since < LATEST_S
        if not delays:
            self.leaving = False
            self.settle()
        elif self._since is None:
            self.put_off()
        return not delays


LATER = CtrlC()
"""The one of this process."""


class _HoldingHandler:
    """A handler that holds Ctrl-C back according to `ends` of `whole`."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.ends: Optional[bool] = False
        self.struck: Optional[float] = None  # when the first came that was held back

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        ends = not LATER.leaving if self.ends is None else self.ends
        if not ends and (self.struck is None or now < self.struck + HELD_S):
            self.struck = self.struck or now
            return
        try:
            self.handler(number, frame)
        except BaseException:
            self.ends = False  # a second one waits until the first has come through
            raise


def whole(
    act: Callable[[], T],
    *undo: Callable[[], Any],
    always: bool = False,
    ends: Optional[bool] = None,
) -> T:
    """Return the result of `act`; neither Ctrl-C nor an error leaves half of it done.

    A ``finally`` does not suffice: Ctrl-C may come before its first line, or within it. Nor does
    blocking the signal: other threads, such as those of BLAS, would take it.

    Args:
        undo: called if the act raises, while Ctrl-C waits; one that fails is called once more.
        always: whether `undo` is called in any case, to restore what was before.
        ends: whether Ctrl-C ends the act. If False, it waits, and is an error at the act's end.
            None: it ends the act until there is a result, of an order or of a `whole` within;
            then it waits, and the act is done. One that comes `HELD_S` after another that waits
            does not wait.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    takes = is_main and callable(handler)
    holding = _HoldingHandler(handler)
    returned = done = False
    try:
        if takes:
            signal.signal(signal.SIGINT, holding)
        try:
            try:
                holding.ends = ends
                LATER.at_the_next_chance()
                result = act()
            finally:
                holding.ends = False
            if holding.struck and ends is False:
                holding.handler(signal.SIGINT, None)  # at a frame of ours it would be put off
                holding.struck = None
            returned, done = True, not always
            LATER.leaving |= is_main and done
        finally:
            if not done:
                _call_all(undo, returned)
    except KeyboardInterrupt:
        holding.struck = None  # it is raised already
        raise
    finally:
        if takes:
            signal.signal(signal.SIGINT, holding.handler)
            if holding.struck:
                signal.raise_signal(signal.SIGINT)
    return result


def _call_all(undo: Sequence[Callable[[], Any]], tells: bool) -> None:
    """Call all, a failing one twice; raise the last error, of a first try only if `tells`."""
    failed: Optional[BaseException] = None
    for one in undo:
        for again in (False, True):
            try:
                one()
                break
            except BaseException as error:  # noqa: BLE001 - raised below
                if again or tells or not isinstance(error, Exception):
                    failed = error
    if failed is not None:
        raise failed


class Interrupts:
    """Ctrl-C during the orders of one runtime, in the master; `interrupt` sends workers the number
    of an order that they give up."""

    def __init__(
        self, rank: Any, flights: Sequence[Flight], interrupt: Callable[[int], None]
    ) -> None:
        self._rank = rank
        self._flights = flights
        self._interrupt = interrupt
        self._under_way = False
        self._serial = 0
        self._struck = False
        self._finished = False
        self._since: Optional[float] = None
        self._ended = False

    def install(self) -> None:
        """Handle Ctrl-C in place of Python's handler, which notebooks set for each cell; a user's
        own stays."""
        if self._ended or threading.current_thread() is not threading.main_thread():
            return
        if self not in LATER.runtimes:
            LATER.runtimes.append(self)
        if _replace() is signal.default_int_handler:
            _replace(LATER.handle)

    def restore(self) -> None:
        """Handle Ctrl-C no more."""
        self._ended = True
        if self in LATER.runtimes:
            LATER.runtimes.remove(self)
        LATER.give_back()

    @property
    def is_under_way(self) -> bool:
        """Whether the main thread of this process, which may be a fork, performs an order."""
        return self._under_way and os.getpid() == self._rank.pid

    def begin(self, serial: int) -> None:
        """Begin an order, in this thread."""
        self._since, self._struck, self._finished, self._serial = None, False, False, serial
        # Ctrl-C interrupts the main thread, never an order of another one.
        self._under_way = threading.get_ident() == LATER.main

    def finish(self) -> bool:
        """Let Ctrl-C wait for the order's end, as all ranks have done it; return whether there was
        one before."""
        self._finished = True
        if self._under_way:
            LATER.leaving = True
        return self._since is not None

    def end(self) -> bool:
        """End an order; return whether a Ctrl-C has waited for that."""
        self._under_way = False
        pending, self._since = self._since is not None, None
        return pending

    def check(self) -> None:
        """Raise KeyboardInterrupt if workers have not reacted to a Ctrl-C; called in waits."""
        if self._since is None:
            return
        if any(flight.phase[0] == Phase.DEVICE for flight in self._flights):
            self._since = time.monotonic()  # nothing interrupts a device
        elif time.monotonic() - self._since > GRACE_S:
            raise KeyboardInterrupt

    def give_up(self, error: BaseException) -> Optional[float]:
        """Interrupt the workers, because the master has failed; return the seconds to wait for
        them, None for as long as for any collective."""
        self._interrupt_workers()
        return None if isinstance(error, Exception) else GRACE_S

    def waits(self, again: bool) -> bool:
        """Return whether a Ctrl-C (delayed before, if `again`) waits for the order's end; the first
        one that comes while the master waits for workers interrupts these."""
        if self._finished:
            self._since = time.monotonic()
            return True
        second, self._struck = self._struck and not again, True
        if second or self._rank.flight.phase[0] in OWN_WORK:
            return False
        self._since = time.monotonic()
        LATER.settle()
        self._interrupt_workers()
        return True

    def _interrupt_workers(self) -> None:
        for flight in self._flights:
            flight.interrupted = self._serial
        self._interrupt(self._serial)


def _replace(handler: Any = None) -> Any:
    """Return the handler of SIGINT behind those of `whole`; put another in its place."""
    current, holding = signal.getsignal(signal.SIGINT), None
    while isinstance(current, _HoldingHandler):
        current, holding = current.handler, current
    if handler and holding:
        holding.handler = handler
    elif handler:
        signal.signal(signal.SIGINT, handler)
    return current


def _is_undivided(frame: Any, packages: Sequence[str]) -> bool:
    """Return whether a signal has come within a function of `_UNDIVIDED` of these packages."""
    if frame is None or frame.f_code.co_name not in _UNDIVIDED:
        return False
    return str(frame.f_globals.get("__name__")).partition(".")[0] in packages


def _waits(number: int, frame: Any) -> bool:
    """Return whether the master's signal came at a wrong moment; if so, send it again."""
    if SHIELD.holds(number):
        return True
    if not (_is_undivided(frame, _COMM) or _is_lost_at(frame)):
        return False

    def send_again(thread: int) -> None:
        time.sleep(AGAIN_S)
        if callable(signal.getsignal(number)):  # else it would kill the process
            signal.pthread_kill(thread, number)

    _thread.start_new_thread(send_again, (threading.get_ident(),))
    return True


def _is_lost_at(frame: Any) -> bool:
    """Return whether an exception would be lost: in a finalizer, in what the garbage collector
    calls (JAX has such functions), or when keys are compared."""
    called = [getattr(one, "__code__", None) for one in gc.callbacks]
    while frame is not None:
        code = frame.f_code
        if code.co_name in _LOSING or frame.f_globals.get("__name__") in _OF_WEAK_REFS:
            return True
        if code in called:
            return True
        frame = frame.f_back
    return False
