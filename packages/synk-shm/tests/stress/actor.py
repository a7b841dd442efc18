"""A process of a program: it runs the commands of the driver, one at a time.

Run as a script it is an unrelated process: ``actor.py <socket> <name>``. It uses only
public functions of synk_shm, as any program would.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
from multiprocessing import connection
from typing import Any, Callable

import numpy as np
import values

import synk_shm as shm

REPLY = b"R"  # no pickle begins with it: messages of arrays use the same connection
KEPT: list[Any] = []  # freed last, when the interpreter clears its modules


class Actor:
    """The arrays of this process by the names that the driver gave them, and its children."""

    def __init__(self, address: str, table: dict[str, np.ndarray]) -> None:
        self.address = address
        self.table = table
        self.locks: dict[str, Any] = {}
        self.children: dict[str, Any] = {}
        self.line: connection.Connection

    def serve(self, name: str) -> None:
        """Connect, run commands until "exit", and exit in the way it names."""
        # Late, so that the thread and the process that hang write their stacks.
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        self.line = connection.Client(self.address, "AF_UNIX")
        self.line.send_bytes(pickle.dumps((name, os.getpid())))
        while True:
            try:
                op, arguments, fuse = pickle.loads(self.line.recv_bytes())
            except (EOFError, OSError):
                os._exit(9)  # the driver has ended
            if fuse:
                light(fuse)
            if op == "exit":
                break
            self.line.send_bytes(REPLY + pickle.dumps(self.answer(op, arguments)))
            if fuse:
                os.kill(os.getpid(), signal.SIGKILL)  # the fuse was longer than the command
        if arguments["how"] == "hard":
            os._exit(0)
        if arguments["how"] == "clean":
            self.table.clear()
        else:
            KEPT.append(self.table)

    def answer(self, op: str, arguments: dict[str, Any]) -> tuple[str, Any]:
        """Return ("ok", result), or the name of the exception's class and its message."""
        try:
            return "ok", getattr(self, op)(**arguments)
        except Exception as error:
            return type(error).__name__, str(error)

    def keep(self, var: str, array: np.ndarray) -> dict[str, Any]:
        """Put an array into the table, and describe it."""
        self.table[var] = array
        return describe(array)

    # create and use

    def create(
        self,
        var: str,
        how: str,
        shape: tuple[int, ...],
        dtype: str,
        seed: int,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        kind = values.DTYPES[dtype]
        if how == "share":
            order = options.pop("order")
            source = values.pattern(kind, shape, seed)
            return self.keep(var, shm.share(np.asarray(source, order=order), **options))
        return self.keep(var, getattr(shm, how)(shape, kind, **options))

    def create_too_big(self, backend: str) -> None:
        shm.empty(1 << 55, "u1", backend=backend)

    def view(self, var: str, new: str, spec: tuple[Any, ...]) -> dict[str, Any]:
        return self.keep(new, values.apply_view(self.table[var], spec))

    def read(self, var: str) -> dict[str, Any]:
        array = self.table[var]
        return {**describe(array), "bytes": values.raw(array)}

    def write(self, var: str, seed: int) -> None:
        array = self.table[var]
        array[...] = values.pattern(array.dtype, array.shape, seed)

    def resize(self, var: str, new: str, length: int) -> dict[str, Any]:
        old = self.table[var]
        result = shm.resize(old, length)
        moved = shm.segment(result) is not shm.segment(old)
        return {**self.keep(new, result), "moved": moved}

    def close(self, var: str) -> None:
        shm.close(self.table[var])

    def unlink(self, var: str) -> None:
        shm.unlink(self.table[var])

    def unlink_name(self, name: str) -> None:
        shm.unlink(name)

    def drop(self, names: list[str]) -> None:
        for var in names:
            del self.table[var]

    def lock(self, var: str) -> None:
        held = shm.lock(self.table[var], timeout_s=0.02)
        held.__enter__()
        self.locks[var] = held

    def unlock(self, var: str) -> None:
        self.locks.pop(var).__exit__(None, None, None)

    # send and attach

    def handle(self, var: str) -> shm.Handle:
        return shm.handle(self.table[var])

    def attach(self, var: str, address: Any, readonly: bool) -> dict[str, Any]:
        return self.keep(var, shm.attach(address, readonly=readonly))

    def send(self, var: str) -> str:
        """Send an array to the driver, which keeps the message."""
        array = self.table[var]
        address = shm.handle(array).name
        self.line.send(array)
        return address

    def recv(self, var: str) -> dict[str, Any]:
        return self.keep(var, self.line.recv())

    # processes and inspection

    def fork(self, name: str) -> None:
        """Fork without exec: the child has copies of all that its parent has."""
        pid = os.fork()
        if pid == 0:
            self.become()
            self.serve(name)
            raise SystemExit  # through all the frames and exit handlers that it inherited
        self.children[name] = pid

    def start(self, name: str, method: str, daemon: bool, names: list[str]) -> None:
        """Start a child of multiprocessing, with arrays as its arguments."""
        context: Any = multiprocessing.get_context(method)
        if method == "fork":
            child = context.Process(target=self.serve_as_child, args=(name,), daemon=daemon)
        else:
            box = {var: self.table[var] for var in names}
            child = context.Process(target=run, args=(self.address, name, box), daemon=daemon)
        child.start()
        self.children[name] = child

    def serve_as_child(self, name: str) -> None:
        self.become()
        self.serve(name)

    def become(self) -> None:
        """In a forked child: drop what belongs to the parent, keep the arrays."""
        self.line.close()
        self.locks.clear()
        self.children.clear()

    def reap(self, name: str) -> int:
        """Wait for a child that has ended. Return its exit code, -9 for a killed one."""
        child = self.children.pop(name)
        if isinstance(child, int):
            status = os.waitpid(child, 0)[1]
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        # Not join(), which also waits for grandchildren: they inherit its end of a pipe.
        while child.exitcode is None:
            time.sleep(0.001)
        code = int(child.exitcode)
        child.join()
        child.close()
        return code

    def list(self) -> list[tuple[Any, ...]]:
        return [(info.names, info.shape, info.alive, info.mine) for info in shm.list()]

    def cleanup(self) -> list[str]:
        return shm.cleanup()

    def audit(self) -> tuple[list[str], int]:
        """Return the files of shared memory open here, and how many of them are mapped."""
        gc.collect()
        links = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                links.append(os.readlink(f"/proc/self/fd/{number}"))
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            mapped = sum("/dev/shm/" in line or "/memfd:" in line for line in lines)
        return [link for link in links if link.startswith(("/dev/shm/", "/memfd:"))], mapped

    def storm(self, rounds: int, known: list[tuple[shm.Handle, bytes]], seed: int) -> int:
        """Make, attach and drop while others do the same. Return the number of wrong values."""
        wrong = 0
        for number in range(rounds):
            source = values.pattern("<i4", (5, 3), seed + number)
            made = shm.share(source, backend="memfd" if number % 5 == 4 else "shm")
            seen = shm.attach(shm.handle(made[1:]), readonly=True)
            made[1] = number
            wrong += not ((seen[0] == number).all() and (seen[1:] == source[2:]).all())
            for address, expected in known:
                wrong += values.raw(address.attach()) != expected
            del made, seen
        return wrong

    def sabotage(self, kind: str, var: str) -> None:
        """Commit a fault, which a check of the driver must report."""
        SABOTAGE[kind](self.table[var])


def describe(array: np.ndarray) -> dict[str, Any]:
    found = shm.segment(array)
    assert found is not None, "not in shared memory"
    assert type(array) is np.ndarray, type(array)
    return {
        "name": found.name,
        "capacity": found.capacity,
        "owner": found.owner,
        "readonly": found.readonly,
        "closed": found.closed,
        "backend": found.backend,
        "shape": array.shape,
        "dtype": array.dtype,
        "writeable": array.flags.writeable,
    }


def light(fuse: int) -> None:
    """Kill this process at the n-th call or return of any function from now on."""
    left = [fuse]
    # Late in the exit modules are gone.
    kill, me, deadly = os.kill, os.getpid(), signal.SIGKILL

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            kill(me, deadly)

    sys.setprofile(count)


def stray_link(array: np.ndarray) -> None:
    """Make a name of the segment without an owner."""
    name = shm.segment(array).name
    os.link("/dev/shm" + name, f"/dev/shm{name[:-2]}zz")


def stray_file(_: np.ndarray) -> None:
    """Make a segment that no cleanup finds."""
    with open(f"/dev/shm/synk.u.stray{os.getpid()}", "wb") as file:
        file.write(b"x")


def wrong_value(array: np.ndarray) -> None:
    """Change one bit."""
    ctypes.c_ubyte.from_address(array.__array_interface__["data"][0]).value ^= 1


def stray_process(_: np.ndarray) -> None:
    """Leave a grandchild in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        signal.pause()


def stray_descriptor(array: np.ndarray) -> None:
    for _ in range(10):
        os.open("/dev/shm" + shm.segment(array).name, os.O_RDONLY)


def noise(_: np.ndarray) -> None:
    sys.stderr.write("a warning\n")


def hang(_: np.ndarray) -> None:
    signal.pause()


def crash(_: np.ndarray) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


FAULTS = (stray_link, stray_file, wrong_value, stray_process, stray_descriptor, noise, hang, crash)
SABOTAGE: dict[str, Callable[[np.ndarray], None]] = {fault.__name__: fault for fault in FAULTS}


def run(address: str, name: str, table: dict[str, np.ndarray]) -> None:
    """Run an actor that is not forked from another one."""
    Actor(address, table).serve(name)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], {})
