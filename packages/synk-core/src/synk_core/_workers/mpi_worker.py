"""A rank of an MPI launcher: it serves the runtimes of rank 0, until that ends."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
import signal
import sys
import time
import traceback

from synk_comm.processes import NO_RANKS
from synk_core._graph.environment import ThreadLimit
from synk_core._wire.channel import ChannelClosed
from synk_core._wire.messages import LEFT_TO_MASTER, Hello
from synk_core._wire.world import World

from . import stacks
from .worker import profiled, serve


def serve_world(world: World) -> None:
    """Be a worker of each runtime that rank 0 starts; return when rank 0 has ended the world."""
    for number in LEFT_TO_MASTER:
        signal.signal(number, signal.SIG_IGN)
    file = stacks.StackFile()
    stacks.answer_with_stacks(file.fd)
    collects = gc.isenabled()
    world.in_use, os.environ[NO_RANKS] = True, "a worker"
    control = world.channel(0)
    try:
        while True:
            hello: Hello = pickle.loads(control.recv())
            os.environ.update(hello.environment)
            channel = world.channel(0, hello.tag)
            # Theano's libraries read the number of threads when they are loaded; later ones, too.
            limit = ThreadLimit(hello.size, hello.threads)
            try:
                with profiled(hello):
                    serve(channel, hello, world, file.fd, limit.apply)
            finally:
                limit.restore()
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing keeps the rank
            channel.wait_for_end(math.inf)
            if not collects:
                gc.disable()
    except ChannelClosed:
        if 0 in world.gone:  # it has not ended the world: it is lost
            with contextlib.suppress(Exception):  # its reader may be gone, too
                sys.stderr.write(
                    f"synkhronos: rank 0 on host {world.members[0].host} (process "
                    f"{world.members[0].pid}) has ended without MPI_Finalize: the job is aborted\n"
                )
                time.sleep(0.2)  # the launcher passes it on, which it does not after the abort
            world.abort(1)
        world.drop_messages()
        control.close()
    except BaseException:
        traceback.print_exc()
        world.abort(1)
        raise
    finally:
        file.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, its reader gone, or a user's own
                stream.flush()
