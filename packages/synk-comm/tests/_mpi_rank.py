"""What each rank of a job does: ``_mpi_rank.py CASE``. It prints a line: rank, and what it saw."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np
from contract.tools import raises

import synk_comm
from synk_comm import CommTimeout, JoinError, MisuseError

TIMEOUT_S = 40.0


def connected(**how):
    return synk_comm.connect(backend="mpi", **{"timeout_s": TIMEOUT_S, **how})


def raised(act):
    """Return what ends an act that may be repeated, in words that JSON has."""
    try:
        while True:
            act()
    except BaseException as exc:
        return [type(exc).__name__, getattr(exc, "rank", None), str(exc)]


def killed():
    """The last rank is killed while the others wait for it."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # hydra's word that a rank has ended
    comm = connected()
    x = np.ones(10)
    for _ in range(5):
        comm.all_reduce(x)
    if comm.rank == comm.size - 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    seen = raised(lambda: comm.all_reduce(x, out=x))
    again = raised(comm.barrier)
    return [seen, again[0], "lost rank" in repr(comm)]


def exception():
    """An exception that nobody catches on one rank ends the job; the others learn which."""
    with connected() as comm:
        if comm.rank == 1:
            raise KeyError("weights")
        return raised(comm.barrier)


def left():
    """A rank ends without a word; MPI keeps its process until the others end."""
    comm = connected()
    if comm.rank == 1:
        sys.exit(3)
    return raised(comm.barrier)


def watched():
    """An error of the watch ends the wait, and the group."""

    def watch():
        if comm is not None and comm.rank == 0 and waiting:
            raise RuntimeError("the watch has seen it")

    comm, waiting = None, []
    comm = connected(watch=watch)
    comm.barrier()
    waiting.append(True)
    if comm.rank:
        time.sleep(0.3)
    return raised(comm.barrier)


def late():
    """One rank does not come to join; it may later, to another group."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.Get_rank() == 1:
        time.sleep(1.0)
        return ["late"]
    try:
        connected(timeout_s=0.3)
    except CommTimeout as exc:
        return ["CommTimeout", sorted(exc.missing), str(exc)]
    return ["joined"]


def apart():
    """Messages and groups of the user never meet ours."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    half = world.Split(rank % 2, -rank)
    comm, pair = connected(), synk_comm.mpi(half)
    assert (pair.rank, pair.size) == (half.Get_rank(), half.Get_size())
    got = np.zeros(1)
    request = world.Irecv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
    for _ in range(3):
        assert comm.all_reduce(1) == size
        assert pair.all_reduce(rank) == sum(r for r in range(size) if r % 2 == rank % 2)
        assert comm.all_reduce(np.ones(300_000))[0] == size
        comm.send(np.array(rank), (rank + 1) % size)
        assert comm.recv((rank - 1) % size) == (rank - 1) % size
    world.Send(np.array([float(rank)]), (rank + 1) % size, tag=7)
    request.Wait()
    comm.close()
    pair.close()
    return [got[0], comm.why, comm.ordered_bytes]


def many():
    """MPI has a few thousand communicators; groups that are closed give theirs back."""
    before = len(os.listdir("/proc/self/fd"))
    with connected() as comm:
        first = len(os.listdir("/proc/self/fd"))
        for turn in range(2500):
            with comm.split(0) if turn % 2 else synk_comm.mpi() as group:
                assert group.size == comm.size
        return [len(os.listdir("/proc/self/fd")) - first, first >= before]


def one_thread():
    import mpi4py

    mpi4py.rc.thread_level = "funneled"
    try:
        connected()
    except JoinError as exc:
        return str(exc)
    return "joined"


def threads_in_turn():
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    with connected() as comm:
        said = str(raises(MisuseError, "several threads", comm.ibarrier))
        return [said, comm.all_reduce(1).item()]


def alone():
    try:
        return connected().size
    except JoinError as exc:
        return str(exc)


CASES = {
    case.__name__: case
    for case in (
        *(exception, killed, left, watched, late, apart, many, one_thread),
        *(alone, threads_in_turn),
    )
}


def main():
    seen = CASES[sys.argv[1]]()
    rank = int(os.environ.get("PMI_RANK", "0"))
    # In one write: ranks share the launcher's output.
    os.write(1, (json.dumps([rank, seen]) + "\n").encode())
    if sys.argv[1] == "killed":
        os._exit(0)  # MPI would wait for the dead rank


if __name__ == "__main__":
    main()
