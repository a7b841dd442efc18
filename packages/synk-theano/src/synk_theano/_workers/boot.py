"""A worker's first steps, before it imports anything of the package.

To import Theano takes seconds, and now and then it hangs there, waiting for the lock of a compile
directory: from here on a worker can be asked for its stacks. Run by `processes.Worker` as
``python boot.py synk_theano._workers.worker <channel fd> <lifeline fd> <stacks fd> <two signals>``.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from typing import Any


def boot(channel_fd: int, lifeline_fd: int, stacks_fd: int, gentle: int, at_once: int) -> None:
    """Write stacks when asked to, by either signal, and become a worker."""
    for fd in (channel_fd, lifeline_fd, stacks_fd):
        os.set_inheritable(fd, False)

    def answer(_number: int, _frame: Any) -> None:
        faulthandler.dump_traceback(stacks_fd, all_threads=True)

    signal.signal(gentle, answer)
    # What the kernel does for it goes on: compiled code may not expect otherwise.
    signal.siginterrupt(gentle, False)
    # In C: whoever holds the interpreter's lock, it answers.
    faulthandler.register(at_once, stacks_fd, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (gentle, at_once))
    # Looking for garbage takes an eighth of the time of these imports, and none is found.
    gc.disable()
    from synk_theano._workers.worker import main

    main(channel_fd, lifeline_fd)


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # modules in here are the package's, not top-level ones
    boot(*map(int, sys.argv[2:]))
