"""The worker processes: start, watch, stop. Knows nothing of Theano.

Workers are fresh processes (``python -m synk_theano._worker``), not forks of one that may hold
threads or a CUDA context. Each inherits one end of a socket pair for commands, and the reading
end of a pipe whose writing end only the master has: when the master is gone, however it went,
the pipe ends and the worker with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ._channel import Channel, ChannelClosed
from ._messages import LEFT_TO_MASTER, Failure, Hello, Ready
from .exceptions import StartError, WorkerDied

_logger = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
"""For importing Theano, on a machine that is busy compiling for other ranks."""

STOP_TIMEOUT_S = 1.0
"""From the end of the channel until SIGKILL."""

KILL_TIMEOUT_S = 5.0
"""From SIGKILL until a process is given up: it may be stuck in the kernel."""


class Worker:
    """One worker process and the master's channel to it."""

    def __init__(self, hello: Hello, environment: Dict[str, str], fds: Sequence[int]) -> None:
        self.rank = hello.rank
        self.channel, theirs = Channel.pair()
        reading, self._lifeline = os.pipe()
        # Until the worker ignores them itself.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_MASTER)
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "synk_theano._worker",
                    str(theirs.fileno()),
                    str(reading),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                # "python -m" puts the current folder first on the path: nobody's modules are here.
                cwd="/",
                # A notebook that restarts its kernel ends the processes of its group one after
                # the other; the last one has to be a worker, which sweeps.
                start_new_session=True,
                pass_fds=(theirs.fileno(), reading, *fds),
            )
        except OSError as error:
            self.release()
            raise StartError(f"cannot start the worker of rank {hello.rank}: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            os.close(reading)
        # A process that is gone already is found out by `wait_ready`.
        with contextlib.suppress(ChannelClosed):
            self.channel.send(pickle.dumps(hello))

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def exitcode(self, wait_s: float = 1.0) -> Optional[int]:
        """The exit status, once it is known; None if the process is still there after `wait_s`."""
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None

    def release(self) -> None:
        """Close the channel and let go of the lifeline, on which a worker that is left ends."""
        self.channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class WorkerPool:
    """All workers of a runtime."""

    def __init__(
        self, starts: Sequence[Tuple[Hello, Dict[str, str]]], fds: Sequence[int] = ()
    ) -> None:
        self._workers: List[Worker] = []
        # A child that the user forks would hold the workers' lifelines.
        os.register_at_fork(after_in_child=_calling(weakref.WeakMethod(self._release_in_child)))
        try:
            for hello, environment in starts:
                self._workers.append(Worker(hello, environment, fds))
        except BaseException:
            self.kill()
            raise

    def _release_in_child(self) -> None:
        for worker in self._workers:
            worker.release()

    @property
    def pids(self) -> Tuple[int, ...]:
        """Process ids, in rank order without the master."""
        return tuple(worker.process.pid for worker in self._workers)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every worker has said that it is ready.

        Raises:
            StartError: one could not start; the message names rank, cause and cure.
        """
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            self._wait_ready(worker, deadline)

    def _wait_ready(self, worker: Worker, deadline: float) -> None:
        try:
            answer = pickle.loads(worker.channel.recv(max(deadline - time.monotonic(), 0.001)))
        except TimeoutError:
            raise StartError(
                f"the worker of rank {worker.rank} was not ready in time; the machine may be busy, "
                f"or Theano's compile directory be locked (see `theano-cache unlock`)"
            ) from None
        except ChannelClosed:
            raise StartError(
                f"the worker of rank {worker.rank} ended during its start with exit status "
                f"{worker.exitcode()}; what it printed is above. Can "
                f"`{sys.executable} -c 'import synk_theano'` run?"
            ) from None
        if isinstance(answer, Failure):
            raise StartError(
                f"the worker of rank {worker.rank} failed in its start:\n{answer.traceback}"
            )
        if not isinstance(answer, Ready):
            raise StartError(f"the worker of rank {worker.rank} answered {answer!r}")

    def send(self, payload: bytes, doing: str) -> None:
        """Send one message to every worker.

        Raises:
            WorkerDied: one is gone.
        """
        for worker in self._workers:
            try:
                worker.channel.send(payload)
            except (ChannelClosed, TimeoutError):
                raise WorkerDied(worker.rank, worker.exitcode(), doing) from None

    def check(self, doing: str) -> None:
        """Return at once if all workers live.

        Raises:
            WorkerDied: one is gone.
        """
        for worker in self._workers:
            if not worker.is_alive() or worker.channel.at_end():
                raise WorkerDied(worker.rank, worker.exitcode(), doing)

    def failures(self, ranks: Iterable[int], serial: int, timeout_s: float = 10.0) -> List[Failure]:
        """What these ranks have to say of their failure in command `serial`.

        All of it is read, wanted or not: a worker that nobody listens to would block.
        """
        deadline = time.monotonic() + timeout_s
        wanted = set(ranks)
        found = [
            self._failure(worker, serial, deadline)
            for worker in self._workers
            if worker.rank in wanted
        ]
        return [failure for failure in found if failure is not None]

    def _failure(self, worker: Worker, serial: int, deadline: float) -> Optional[Failure]:
        try:
            while True:
                left = max(deadline - time.monotonic(), 0.001)
                answer = pickle.loads(worker.channel.recv(left))
                if isinstance(answer, Failure) and answer.serial == serial:
                    return answer
        except (ChannelClosed, TimeoutError):
            return None

    def stop(self) -> None:
        """Let all workers go: kill those that do not end within STOP_TIMEOUT_S."""
        for worker in self._workers:
            worker.channel.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers:
            worker.exitcode(max(deadline - time.monotonic(), 0.0))
        self.kill()

    def kill(self) -> None:
        """End all workers now, and wait for the kernel to take them."""
        for worker in self._workers:
            if worker.is_alive():
                worker.process.kill()
        while self._workers:
            # One by one, so that an interrupted kill can be repeated.
            worker = self._workers[-1]
            if worker.exitcode(KILL_TIMEOUT_S) is None:
                _logger.warning("process %d does not go, not even killed", worker.process.pid)
            worker.release()
            self._workers.pop()


def _calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    """A function that calls `method` if its object is still there."""

    def call() -> None:
        bound = method()
        if bound is not None:
            bound()

    return call
