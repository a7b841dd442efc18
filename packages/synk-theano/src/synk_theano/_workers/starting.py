"""What each worker is told before anything else, and its start."""

from __future__ import annotations

import os
from multiprocessing.process import current_process
from typing import Optional, Sequence

import synk_comm
from synk_theano._graph import environment
from synk_theano._rank.rank import Rank
from synk_theano._wire.messages import ArrayRef, Hello

from .pool import WorkerPool
from .processes import Watchdog


def start_workers(
    master: Rank,
    devices: Optional[Sequence[str]],
    group: Optional[synk_comm.Group],
    *,
    times: ArrayRef,
    flight: ArrayRef,
    profile: bool,
    reseed: bool,
    nccl: bool,
    record: bool,
    watchdog: Optional[Watchdog],
) -> WorkerPool:
    """Start a worker for each rank but the master's; returns while they start.

    Args:
        master: this process's rank.
        devices: each rank's device, or None for CPU processes.
        group: that they will join; None if there are no workers.
        times, flight, reseed, nccl, record: see `Hello`.
        profile: have each worker write a profile.
        watchdog: that is to look after them.

    Raises:
        StartError: a process could not be started; those that were are ended.
    """
    if group is None:
        return WorkerPool(())
    variables = environment.worker_environment(master.size, bool(devices))
    options = environment.theano_options()
    folder = environment.current_folder()
    starts = [
        (
            Hello(
                rank=rank,
                size=master.size,
                master=master.rank,
                ticket=group.ticket(rank),
                sys_path=environment.import_path(),
                directory=folder,
                theano_config=options,
                profile_path=(
                    os.path.join(folder, f"synkhronos_profile_rank{rank}.prof") if profile else None
                ),
                times=times,
                flight=flight,
                atomic=master.journal.on,
                authkey=bytes(current_process().authkey),
                reseed=reseed,
                device=devices[rank] if devices else None,
                nccl=nccl,
                record=record,
            ),
            variables,
        )
        for rank in range(master.size)
        if rank != master.rank
    ]
    return WorkerPool(starts, group.fds, group.folder, watchdog)
