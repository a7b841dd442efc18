"""The first steps of a worker, before it imports the package.

Importing Theano takes seconds, and can hang while it waits for the lock of a compile directory, so
a worker must be able to write its stacks before that. `processes.Worker` runs this file as
``python boot.py synk_core._workers.worker <channel, lifeline, stacks fd> <two signals> <path...>``.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from typing import Any


def answer_with_stacks(stacks_fd: int, gentle: int, at_once: int) -> None:
    """Install the handlers that write stacks, one for each signal."""

    def answer(_number: int, _frame: Any) -> None:
        faulthandler.dump_traceback(stacks_fd, all_threads=True)

    signal.signal(gentle, answer)
    # Restart system calls: compiled code may not expect that one is interrupted.
    signal.siginterrupt(gentle, False)
    # In C, so that it writes them whichever thread holds the interpreter's lock.
    faulthandler.register(at_once, stacks_fd, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (gentle, at_once))


def boot(channel_fd: int, lifeline_fd: int, stacks_fd: int, gentle: int, at_once: int) -> None:
    """Install the handlers that write stacks, and run the worker."""
    for fd in (channel_fd, lifeline_fd, stacks_fd):
        os.set_inheritable(fd, False)
    answer_with_stacks(stacks_fd, gentle, at_once)
    # Garbage collection takes an eighth of the time of these imports, and finds nothing.
    gc.disable()
    from synk_core._workers.worker import main

    main(channel_fd, lifeline_fd)


if __name__ == "__main__":
    # Without this folder, and not by a variable: names of folders may have ":" in them.
    sys.path[:] = sys.argv[7:]
    boot(*map(int, sys.argv[2:7]))
