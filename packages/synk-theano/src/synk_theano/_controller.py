"""The master's hold on its workers: start them, have all ranks perform commands, end them.

While it waits inside a collective the master looks after the processes: one that is gone ends
the call, and with it the whole group, because its replica of the variables is lost.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import threading
from typing import Any, Callable, Optional, Sequence, Tuple

import synk_comm

from . import _environ
from ._messages import Call, Collective, Command, Envelope, Failure, Hello, Join, Stop
from ._pool import WorkerPool
from ._rank import Rank
from ._store import DataStore
from .exceptions import Closed, InputValueError, WorkerDied, WorkerFailed


class Controller:
    """The master's rank, its workers and the group that connects them.

    Args:
        size: number of ranks.
        master: the rank of this process.
        backend: "shm" or "zmq".
        timeout_s: seconds that a rank waits for the others inside a collective.
        profile: have each worker write a profile.
        report: takes lines of progress.
        store: the arrays in shared memory that commands refer to.

    Returns at once; workers start in the background.
    """

    def __init__(
        self,
        size: int,
        master: int,
        *,
        backend: str,
        timeout_s: float,
        profile: bool,
        report: Callable[[str], None],
        store: DataStore,
    ) -> None:
        self.rank = Rank(master, size, master)
        self._timeout_s = timeout_s
        self._report = report
        self._store = store
        self.lock = threading.RLock()
        self._serials = itertools.count(1)
        self._threads = _environ.ThreadLimit(size)
        self._joined = False
        self._closed: Optional[str] = None
        self._released = False
        self._doing = "start"
        self._owner = os.getpid()
        self._group = synk_comm.create_group(size, backend) if size > 1 else None
        try:
            self._pool = self._start_workers(profile)
        except BaseException:
            if self._group is not None:
                self._group.close()
            raise
        atexit.register(self.close)

    def _start_workers(self, profile: bool) -> WorkerPool:
        if self._group is None:
            return WorkerPool(())
        environment = _environ.worker_environment(self.rank.size)
        options = _environ.theano_options()
        folder = os.getcwd()
        hellos = [
            Hello(
                rank=rank,
                size=self.rank.size,
                master=self.rank.master,
                ticket=self._group.ticket(rank),
                timeout_s=self._timeout_s,
                sys_path=_environ.import_path(),
                directory=folder,
                theano_config=options,
                profile_path=(
                    os.path.join(folder, f"synkhronos_profile_rank{rank}.prof") if profile else None
                ),
            )
            for rank in range(self.rank.size)
            if rank != self.rank.master
        ]
        return WorkerPool([(hello, environment) for hello in hellos], self._group.fds)

    @property
    def state(self) -> str:
        """In a few words, for reprs."""
        if self._closed is not None:
            return f"closed: {self._closed}"
        return "ready" if self._joined else "starting"

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._closed is not None

    @property
    def worker_pids(self) -> Tuple[int, ...]:
        """Process ids of the workers, in rank order without the master."""
        return self._pool.pids

    def require_open(self) -> None:
        """
        Raises:
            Closed: it was closed, a failure has closed it, or it is another process's.
        """
        if os.getpid() != self._owner:
            raise Closed(
                f"this runtime belongs to process {self._owner}, and this is its child "
                f"{os.getpid()}; use it there, or call fork() of synkhronos in a fresh process"
            )
        if self._closed is not None:
            raise Closed(
                f"this runtime is closed ({self._closed}); call fork() to start a new one, and "
                f"build functions again: they belong to the runtime that they were built in"
            )

    def await_workers(self) -> None:
        """Wait for the workers' start, and join them; returns at once the second time.

        Raises:
            StartError: one could not start; everything is closed then.
        """
        if self._joined:
            return
        try:
            self._pool.wait_ready()
            self._pool.send(pickle.dumps(Envelope(next(self._serials), Join())), "start")
            ticket = None if self._group is None else self._group.ticket(self.rank.rank)
            self.rank.join(ticket, self._timeout_s, self._watch)
        except BaseException as error:
            self._end(f"its workers could not be started ({type(error).__name__})")
            raise
        if self._group is not None:
            self._group.close()
        self._joined = True
        noun = "process" if self.rank.size == 1 else "processes"
        self._report(
            f"Synkhronos: {self.rank.size} CPU {noun} initialized, master rank: {self.rank.master}"
        )

    def run(self, command: Command) -> Any:
        """Have all ranks perform `command`; blocks until they have.

        Raises:
            WorkerFailed: user code raised on a worker; all goes on.
            WorkerDied: a worker process is gone; everything is closed.
            Exception: what user code raised in the master.
        """
        with self.lock:
            self.require_open()
            self.await_workers()
            self._doing = self._describe(command)
            self._threads.apply()
            envelope = Envelope(next(self._serials), command, self._store.take_released())
            try:
                self._send(envelope)
                return self.rank.perform(envelope)
            except synk_comm.PeerDeclined as declined:
                failures = self._pool.failures(declined.reasons, envelope.serial)
                error, cause = self._worker_failed(command, declined, failures)
                raise error from cause
            except synk_comm.MismatchError as mismatch:
                raise InputValueError(self._explain(command, mismatch)) from mismatch
            except BaseException as error:
                if not self.rank.in_step:
                    self._end_out_of_step(error)
                else:
                    self._pool.failures(self.rank.also_declined, envelope.serial)
                raise

    def _send(self, envelope: Envelope) -> None:
        if self.rank.size == 1:
            return
        payload = pickle.dumps(envelope, protocol=5)
        # From here on some workers may have it and others not.
        self.rank.in_step = False
        self._pool.send(payload, self._doing)

    def _describe(self, command: Command) -> str:
        if isinstance(command, Call):
            return f"function {self.rank.functions[command.function_id].recipe.name!r}"
        return f"{command.kind}()" if isinstance(command, Collective) else "distribute()"

    def _worker_failed(
        self, command: Command, declined: synk_comm.PeerDeclined, failures: Sequence[Failure]
    ) -> Tuple[WorkerFailed, Optional[BaseException]]:
        """The error to raise for a worker's failure, and the worker's own exception."""
        doing = self._doing
        if isinstance(command, Call) and self.rank.functions[command.function_id].recipe.updated:
            doing += " (ranks that had finished have applied their updates: use broadcast())"
        if not failures:
            rank = min(declined.reasons)
            return WorkerFailed(rank, doing, declined.reasons[rank], ""), None
        first = failures[0]
        error = WorkerFailed(first.rank, doing, declined.reasons[first.rank], first.traceback)
        return error, _unpickled(first.error)

    def _explain(self, command: Command, mismatch: synk_comm.MismatchError) -> str:
        text = f"in {self._doing} the ranks' values do not fit together: {mismatch}"
        if isinstance(command, Call):
            text += (
                "; an output with an entry for each row needs op 'gather', as in (variable, "
                "'gather')"
            )
        return text

    def _watch(self) -> None:
        """Called while the master waits for others.

        Raises:
            WorkerDied: one will never come.
        """
        self._pool.check(self._doing)

    def _end_out_of_step(self, error: BaseException) -> None:
        """The ranks have lost each other; name the worker that died, if that was the cause."""
        try:
            self._pool.check(self._doing)
        except WorkerDied as died:
            self._end(str(died))
            if isinstance(error, WorkerDied):
                return
            raise died from error
        self._end(f"{type(error).__name__} in {self._doing}" + (f": {error}" if str(error) else ""))

    def close(self) -> None:
        """Stop the workers and free what they hold. Idempotent; returns within seconds."""
        if self._released or os.getpid() != self._owner:
            return
        self._closed = self._closed or "by close()"
        try:
            self._pool.stop(pickle.dumps(Envelope(next(self._serials), Stop())))
        finally:
            self._release()

    def _end(self, reason: str) -> None:
        """Close after a failure, without asking the workers."""
        self._closed = self._closed or reason
        try:
            self._pool.kill()
        finally:
            self._release()

    def _release(self) -> None:
        self._pool.kill()
        self.rank.close()
        if self._group is not None:
            self._group.close()
        self._store.clear()
        self._threads.restore()
        self._released = True
        atexit.unregister(self.close)


def _unpickled(error: Optional[bytes]) -> Optional[BaseException]:
    """A worker's exception, if it survives the journey: some classes do not."""
    if error is None:
        return None
    try:
        exception = pickle.loads(error)
    except Exception as broken:  # noqa: BLE001 - user code runs here, and may raise anything
        return broken
    return exception if isinstance(exception, BaseException) else None
