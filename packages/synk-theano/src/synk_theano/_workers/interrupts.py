"""Ctrl-C, and giving up an order: whoever computes for it is interrupted.

A rank that computes can be interrupted at once: it declines its next collective, and all stay in
step. One that waits inside a collective cannot: the ranks would lose each other. So the master's
Ctrl-C, when it waits, first interrupts those that compute; they decline, and the wait is over.

Where all have been done when it is heard, the order is taken back (see `Rank.take_back`), and what
cannot be taken back gives its result: a `KeyboardInterrupt` out of a call means that it did not
happen. So none is raised between the order's end and the user's own code, but a moment later.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from typing import Any, Callable, Iterator, Optional, Sequence

from synk_theano._watch.flight import OWN_WORK, Flight
from synk_theano.exceptions import Interrupted

SIGNAL = signal.SIGRTMIN + 2 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""To workers that compute; programs and batch systems have other uses for the common ones."""

GRACE_S = 2.0
"""From Ctrl-C until the workers that have not listened are ended."""

AGAIN_S = 0.01
"""From a Ctrl-C that came at the wrong moment until it is tried again."""

LATEST_S = 0.25
"""Of this thread's processor time: after it, Ctrl-C is raised wherever the program is. From the
end of an order into the user's code it takes much less."""

_OURS = ("synk_theano", "synkhronos")
_FINALIZERS = ("__del__", "_died")  # the second is that of arrays in shared memory
_OF_WEAK_REFS = ("weakref", "_weakrefset")


def obey(rank: Any) -> None:
    """In a worker: let the master interrupt what it computes."""

    def interrupt(_number: int, _frame: Any) -> None:
        if rank.flight.interrupted == rank.serial and rank.flight.phase[0] in OWN_WORK:
            raise Interrupted

    signal.signal(SIGNAL, interrupt)


class Later:
    """A Ctrl-C of the main thread that came at the wrong moment, for all runtimes.

    Attributes:
        leaving: the main thread may be on its way out of this package with the result of an order.
    """

    def __init__(self) -> None:
        self.leaving = False
        self._since: Optional[float] = None
        self._again = False
        # A thread says that it strikes, and strikes: nothing of this thread comes between the two.
        self._striking = threading.RLock()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self._striking = threading.RLock()  # of a thread that is not in the child

    def put_off(self) -> None:
        """Raise it as soon as the program has left this package, or calls it again."""
        self.leaving = True
        self._since = since = time.thread_time()
        # A plain thread: to start a `threading.Thread` takes a lock, which may be taken here.
        _thread.start_new_thread(self._strike_again, (since,))

    def _strike_again(self, since: float) -> None:
        main = threading.main_thread().ident
        while main is not None:
            time.sleep(AGAIN_S)
            with self._striking:
                if self._since is not since:
                    return
                self._again = True
                signal.pthread_kill(main, signal.SIGINT)

    def _settle(self) -> bool:
        """Nothing is put off any more; tell whether it was."""
        with self._striking:
            pending, self._since = self.is_pending(), None
        return pending

    def at_the_next_chance(self) -> None:
        """This thread has come with something new to do.

        Raises:
            KeyboardInterrupt: one was put off, and this is the main thread.
        """
        if threading.current_thread() is threading.main_thread():
            self.leaving = False
            if self._settle():
                raise KeyboardInterrupt

    def is_pending(self) -> bool:
        """Whether one is put off."""
        return self._since is not None

    def take(self) -> bool:
        """Whether what has come is one that was put off."""
        with self._striking:
            again, self._again = self._again or self.is_pending(), False
        return again

    def is_the_moment(self, frame: Any, again: bool, within: bool = False) -> bool:
        """Whether to raise one that came at this frame; it is put off if not.

        Args:
            again: it is one that was put off.
            within: it may be raised within this package.
        """
        if again and self._since is None:
            return False  # it has been raised already
        if _in_a_finalizer(frame) and (again or self._since is None):
            if self._since is None:
                self.put_off()
            return False
        module = frame.f_globals.get("__name__") if frame is not None else None
        if not within and self.leaving and str(module).partition(".")[0] in _OURS:
            if self._since is None:
                self.put_off()
                return False
            if time.thread_time() - self._since < LATEST_S:
                return False
        self.leaving = False
        self._settle()
        return True


LATER = Later()


class _Note:
    """A handler that notes Ctrl-C for `handler`, to which a second one goes at once."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.struck = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.struck:
            self.handler(number, frame)
        self.struck = True


@contextlib.contextmanager
def held_back(undo: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C have its effect after the block; the second one at once.

    To block the signal is not enough: other threads, such as those of BLAS, would take it.

    Args:
        undo: called when it is raised: nobody will have what the block has made.
    """
    LATER.at_the_next_chance()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    note = _Note(handler)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, note.handler)
    if note.struck:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            undo()
            raise


class Interrupts:
    """The master's side.

    Args:
        rank: the master's.
        flights: of all ranks.
        pids: gives the workers' process ids.
        look: called before anybody is interrupted.
    """

    def __init__(
        self,
        rank: Any,
        flights: Sequence[Flight],
        pids: Callable[[], Sequence[int]],
        look: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._flights = flights
        self._pids = pids
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
        """Take Ctrl-C over, if it is Python's own or another runtime's: a user's handler stays.

        Again and again, because notebooks set Python's own for each cell.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGINT)
        note = current if isinstance(current, _Note) else None
        current = note.handler if note else current
        before = link = _of_a_runtime(current)
        while link is not None:
            if link is self:
                return  # the handlers hand on to each other
            link = link._before
        if before is not None or current is signal.default_int_handler:
            self._before = before
            if note:
                note.handler = self._on_ctrl_c
            else:
                signal.signal(signal.SIGINT, self._on_ctrl_c)

    def restore(self) -> None:
        """Give Ctrl-C back; the runtime has ended. One that is put off is raised first."""
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
        """The runtime whose handler was there before this one's, if it is still open."""
        before = self._before
        while before is not None and before._ended:
            before = before._before
        return before

    def begin(self, serial: int) -> None:
        """An order begins, in this thread."""
        self._since, self._struck, self._finished, self._serial = None, False, False, serial
        # Ctrl-C is the main thread's, whatever others are waiting for.
        self._under_way = threading.get_ident() == self._main

    def finish(self) -> bool:
        """All ranks have done the order; tell whether there was a Ctrl-C meanwhile.

        One that comes from now on waits until the order's end.
        """
        self._finished = True
        if self._under_way:
            LATER.leaving = True
        return self._since is not None

    def end(self) -> bool:
        """An order has ended; tell whether there was a Ctrl-C that is still to be raised."""
        self._under_way = False
        pending, self._since = self._since is not None, None
        return pending

    def check(self) -> None:
        """Called while the master waits.

        Raises:
            KeyboardInterrupt: some workers have not listened to a Ctrl-C.
        """
        if self._since is not None and time.monotonic() - self._since > GRACE_S:
            raise KeyboardInterrupt

    def give_up(self, error: BaseException) -> Optional[float]:
        """The master has failed: have the workers stop, too.

        Returns:
            For how many seconds to wait for them; None for as long as for any collective.
        """
        self._look()
        self._tell()
        return None if isinstance(error, Exception) else GRACE_S

    def _on_ctrl_c(self, number: int, frame: Any) -> None:
        self._strike(number, frame, LATER.take())

    def _strike(self, number: int, frame: Any, again: bool) -> None:
        if not self._under_way or os.getpid() != self._rank.pid:
            before = self._living_before()
            if before is not None:
                if self._ended:
                    self._give_back()
                before._strike(number, frame, again)
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
        self._tell()

    def _tell(self) -> None:
        for flight in self._flights:
            flight.interrupted = self._serial
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGNAL)


def _in_a_finalizer(frame: Any) -> bool:
    """Whether Python calls this because something has gone: what is raised there is lost."""
    while frame is not None:
        if frame.f_code.co_name in _FINALIZERS or frame.f_globals.get("__name__") in _OF_WEAK_REFS:
            return True
        frame = frame.f_back
    return False


def _of_a_runtime(handler: Any) -> Optional[Interrupts]:
    """Whose method a handler of signals is, if it is one of these."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, Interrupts) else None
