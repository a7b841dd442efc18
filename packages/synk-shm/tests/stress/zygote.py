"""The zygote: fork programs, each as if by a shell, from a process that has imported everything.

It has no shared array. A program is a grandchild, so that the driver becomes its parent; leads a
session, so that all its processes can be killed at once; and is a family of its own. The forked
process returns from `main` and exits in the ordinary way.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

import actor


def main() -> None:
    line = Connection(int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # so that the exit of a fork copies fewer pages
    multiprocessing.set_forkserver_preload(["actor"])
    line.send("ready")
    while True:
        try:
            how, address, name = line.recv()
        except EOFError:
            return
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            continue
        line.close()
        if os.fork():
            os._exit(0)
        os.setsid()
        break
    if how == "exec":
        path = os.path.abspath(actor.__file__)
        os.execv(sys.executable, [sys.executable, "-W", "error", path, address, name])
    multiprocessing.current_process().authkey = os.urandom(32)
    actor.run(address, name, {})


if __name__ == "__main__":
    main()
