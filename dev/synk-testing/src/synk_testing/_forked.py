"""The zygote's own process: ``python _forked.py <fd> <code to prepare with>``; see `zygote`."""

from __future__ import annotations

import array
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import types
from typing import Any


def main() -> None:
    """Prepare, and fork a process for each order; in such a process, run the program."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    del sys.path[0]  # this folder
    exec(sys.argv[2], {"__name__": "prepare"})
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        sys.exit(f"there are {len(threads)} threads: what is forked would lack them")
    gc.collect()
    gc.freeze()  # an exit looks at fewer pages then, and copies fewer
    order = serve(line)
    if order is not None:
        become(order)


def serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork processes and report how they end; in a child, return the order that it is for."""
    names = os.listdir("/proc/self/fd")
    kept = {int(name) for name in names if os.path.exists(f"/proc/self/fd/{name}")}
    kept.remove(line.fileno())
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready = select.select([line.fileno(), reading], [], [])[0]
        if reading in ready:
            os.read(reading, 4096)
            report_ended(running)
        if line.fileno() not in ready:
            continue
        received = receive(line)
        if received is None:
            for pid in running:
                os.killpg(pid, signal.SIGKILL)
            report_ended(running, 0)
            return None
        order, fds = received
        pid = os.fork()
        if pid == 0:
            line.close()
            settle(kept, fds)
            return order
        running[pid] = fds[3]
        for fd in fds[:3]:
            os.close(fd)


def receive(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return an order and its descriptors: three streams, and where to report the status."""
    fds = array.array("i")
    head, kinds, *_ = line.recvmsg(8, socket.CMSG_SPACE(4 * fds.itemsize))
    if not head:
        return None
    fds.frombytes(kinds[0][2])
    text = b""
    while len(text) < int.from_bytes(head, "little"):
        text += line.recv(1 << 16)
    return json.loads(text), list(fds)


def report_ended(running: dict[int, int], options: int = os.WNOHANG) -> None:
    """Reap what has ended; report its exit code, below 0 for a signal."""
    while running:
        pid, status = os.waitpid(-1, options)
        if not pid:
            return
        fd = running.pop(pid)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        try:
            os.write(fd, code.to_bytes(8, "little", signed=True))
        except BrokenPipeError:  # the test has ended
            pass
        os.close(fd)


def settle(kept: set[int], fds: list[int]) -> None:
    """Give up what this process shares with the one that it was forked from."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.setsid()
    os.write(fds[3], os.getpid().to_bytes(8, "little"))  # not before it leads its session
    for stream, fd in enumerate(fds[:3]):
        os.dup2(fd, stream)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                pass


def become(order: dict[str, Any]) -> None:
    """Set what is process-wide, then run the program."""
    system: Any = sys
    how = {"write_through": system.stdout.write_through}
    system.stdin = system.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    system.stdout = system.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    system.stdout.reconfigure(**how)
    system.stderr = system.__stderr__ = os.fdopen(
        2, "w", 1, errors="backslashreplace", closefd=False
    )
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    if order["stacks"]:
        faulthandler.enable(2)
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "tempfile" in sys.modules:
        setattr(sys.modules["tempfile"], "tempdir", None)  # noqa: B010 - it depends on the variables
    path = order["file"]
    sys.argv = [path or "-c", *order["arguments"]]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)) if path else "")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if path:
        module.__file__ = path
    exec(compile(order["code"], path or "<string>", "exec"), module.__dict__)


if __name__ == "__main__":
    main()
