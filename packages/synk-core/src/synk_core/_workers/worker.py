"""A worker: send `Ready`, then perform one order after the other until a `Stop`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, NoReturn, Optional, Union

from synk_core._wire.channel import Channel, ChannelClosed
from synk_core._wire.messages import LEFT_TO_MASTER, Failure, Hello, Ready
from synk_core.files import whole_file

from .stacks import answer_with_stacks

if TYPE_CHECKING:
    from synk_core._wire.world import MpiChannel, World

    AnyChannel = Union[Channel, MpiChannel]

UNBOUNDED_S = 1e9
"""Seconds that a worker waits: the master's next order may take days. The master's waits have a
limit, and its workers notice at once when it gives up or ends."""

VERDICT_S = 1.0
"""Seconds that a worker that is out of step waits for the master to end it."""

FAILURE_LIMIT = 100_000
"""Characters of a traceback, or bytes of a pickled exception, that are sent at most."""


def main(channel_fd: int, stacks_fd: int) -> NoReturn:
    """Run the worker until the master stops it, and end the process; the descriptors are those of
    the channel and of the file of stacks."""
    for fd in (channel_fd, stacks_fd):
        os.set_inheritable(fd, False)
    # Importing the engine takes seconds, and can hang: it waits for a compile directory's lock.
    answer_with_stacks(stacks_fd)
    # Garbage collection takes an eighth of the time of the imports, and finds nothing.
    gc.disable()
    # A batch system may send them to all processes. They were blocked until now.
    for number in LEFT_TO_MASTER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_MASTER)
    channel, status = Channel(socket.socket(fileno=channel_fd)), 1
    try:
        hello: Hello = pickle.loads(channel.recv())
        with profiled(hello):
            serve(channel, hello)
        status = 0
    except ChannelClosed:
        pass
    except BaseException:  # noqa: BLE001 - nothing above catches it
        traceback.print_exc()
    # Not by returning: the interpreter would wait for the threads of the user's modules.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a user's own
            stream.flush()
    os._exit(status)


@contextlib.contextmanager
def profiled(hello: Hello) -> Iterator[None]:
    """Write a profile of the block, if the runtime's settings ask for one."""
    if not hello.settings.profile:
        yield
        return
    import cProfile
    import marshal

    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        path = os.path.join(hello.directory, f"synkhronos_profile_rank{hello.rank}.prof")
        try:
            profile.create_stats()
            with whole_file(path, follow=False) as file:
                marshal.dump(profile.stats, file)  # as dump_stats() does
        except OSError as error:
            sys.stderr.write(f"synkhronos: {path} was not written: {error}\n")


def serve(
    channel: Any,
    hello: Hello,
    world: Optional[World] = None,
    stacks_fd: int = -1,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Prepare, join the other ranks, and perform the master's orders; `between` is called before
    each."""
    import synk_comm
    from synk_core.device import is_of_the_group

    is_far = world is not None and not world.is_near(hello.rank)
    try:
        rank = _prepare(hello, world, channel if is_far else None)
    except BaseException as error:  # noqa: BLE001 - the master raises it
        _report(channel, 0, hello.rank, "start", error, time.perf_counter())
        return
    channel.send(pickle.dumps(Ready(stacks_fd)))

    def watch() -> None:
        if world is not None:
            channel.take_all()  # about an order that this rank does not compute any more
        if channel.at_end():
            raise ChannelClosed("the master is gone")

    try:
        channel.recv()  # JOIN
        enter = partial(synk_comm.join, hello.ticket) if world is None else world.communicator
        try:
            rank.join(enter, UNBOUNDED_S, watch)
        except BaseException as error:
            if not is_of_the_group(error) and not isinstance(error, ChannelClosed):
                _report(channel, 0, hello.rank, "its start", error, time.perf_counter())
                _await_verdict(channel)
            raise
        between()
        while _obey(rank, channel):
            if is_far:
                rank.log.append((rank.serial, rank.times[hello.rank :: hello.size].tolist()))
            between()
    except ChannelClosed:
        return
    except (synk_comm.PeerLost, synk_comm.AbortedError):
        # A worker that ended now would look like the cause.
        _await_verdict(channel)
    finally:
        rank.close()


def _await_verdict(channel: AnyChannel, wait_s: Optional[float] = None) -> None:
    """Wait until the master closes the channel, for `wait_s` seconds at most."""
    with contextlib.suppress(ChannelClosed, TimeoutError):
        while True:
            channel.recv(wait_s)


def _prepare(hello: Hello, world: Optional[World], far: Optional[MpiChannel]) -> Any:
    """Return the rank; `far` is the channel to the master, if that is on another host."""
    from synk_core._graph.environment import apply_options, follow, keep_freed_memory

    follow(hello.sys_path, hello.directory, world)
    from multiprocessing.process import current_process

    import numpy as np

    import synk_shm
    from synk_core import engine

    engine.load(hello.adapter)
    from synk_core._graph.devices.assignment import take
    from synk_core._graph.random_streams import seed_globals
    from synk_core._rank.rank import STEPS_IN_LINE, Rank
    from synk_core._wire.flight import Flight

    from .interrupts import obey

    current_process().authkey = hello.authkey
    keep_freed_memory()
    apply_options(hello.options)
    engine.worker_cache()
    settings, threads = hello.settings, hello.threads
    device = take(hello.contexts, settings.nccl, settings.graphs, settings.precision)
    flight = None if far else Flight(synk_shm.attach(hello.flight.handle), hello.rank)
    rank = Rank(hello.rank, hello.size, hello.master, settings, device, flight, threads)
    if world is not None:
        rank.use(world)
    own = np.zeros(STEPS_IN_LINE * hello.size)  # the master asks for them when it needs them
    rank.times = memoryview(own if far else synk_shm.attach(hello.times.handle))  # type: ignore[arg-type] # NumPy 1 does not say so
    for act in settings.at_start:
        act.perform(rank, act.argument)
    obey(rank, far)
    seed_globals(settings.seed, rank.seed)
    # Modules stay: each collection would look through their objects.
    gc.freeze()
    gc.enable()  # see `main`
    return rank


def _obey(rank: Any, channel: AnyChannel) -> bool:
    """Perform the next order; return False if it was `Stop`. Raises PeerLost or AbortedError if the
    ranks have lost each other, ChannelClosed if the master is gone or this one is out of step."""
    import synk_comm

    try:
        return rank.perform() is not None
    except BaseException as error:  # the master raises it
        if rank.group_raised(error, synk_comm.PeerDeclined, synk_comm.MismatchError):
            # The failure is another rank's, or the master raises the same.
            return True
        if rank.group_raised(error, synk_comm.PeerLost, synk_comm.AbortedError):
            raise
        if not rank.group_raised(error):
            when = rank.failed_at + rank.clock_offset_s
            _report(channel, rank.serial, rank.rank, rank.doing, error, when)
            if rank.in_step:
                return True
        _await_verdict(channel, VERDICT_S)
        raise ChannelClosed("this rank is out of step") from None


def _report(
    channel: AnyChannel, serial: int, rank: int, doing: str, error: BaseException, when: float
) -> None:
    """Send the master a `Failure`."""
    from synk_core._text import text_of
    from synk_core._tracebacks import without_ours

    text, frames, pickled = f"{type(error).__qualname__}: {text_of(error)}", [""], None
    with contextlib.suppress(BaseException):  # users' classes may do anything; the text remains
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        frames = traceback.format_list(traceback.extract_tb(without_ours(error.__traceback__)))
        # Theano attaches its graph to some exceptions; it is not sent.
        for name in [name for name in vars(error) if name.startswith("__")]:
            delattr(error, name)
        import cloudpickle

        pickled = cloudpickle.dumps(error)
    if pickled is not None and len(pickled) > FAILURE_LIMIT:
        pickled = None
    if len(text) > FAILURE_LIMIT:
        text = f"{text[: FAILURE_LIMIT // 2]}\n...\n{text[-FAILURE_LIMIT // 2 :]}"
    frame_text = "".join(frames)[-FAILURE_LIMIT:]
    failure = Failure(serial, rank, doing, text, frame_text, pickled, when)
    channel.send(pickle.dumps(failure))
