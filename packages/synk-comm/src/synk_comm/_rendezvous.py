"""Groups of processes without a common parent: they meet at an address, and prove a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from typing import NamedTuple

from ._backends.shm import ShmFabric
from ._backends.shm import create as create_block
from ._desk import Desk, Goods, Line, Patience, call_desk
from ._fabric import SLICE_S, Watch
from ._folder import SocketFolder
from ._groups import DEFAULT_TIMEOUT_S, Ticket, enter_folder, meet
from ._guard import deadline_after
from ._secret import token_key
from .abc import Communicator
from .exceptions import JoinError


def connect(
    rank: int,
    size: int,
    address: str,
    *,
    token: str | bytes,
    backend: str = "shm",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    watch: Watch | None = None,
) -> Communicator:
    """Enter a group of processes that have no common parent; return when all ranks have.

    Args:
        rank, size: who this is, of how many.
        address: the same on all ranks: ``ipc:///folder``, a folder of this user with mode 0700
            (rank 0 makes it if it is missing, and removes it again when all have joined), or
            ``tcp://127.0.0.1:port`` (zmq only; any loopback address).
        token: the same secret on all ranks, at least 16 characters; pass it by environment or
            file, never on a command line.
        backend: ``"shm"`` or ``"zmq"``.
        timeout_s: bound of this wait, and default bound of every collective.
        watch: called at least every 20 ms while this rank waits, here and in every collective.

    Raises:
        ValueError: bad arguments; an address that other machines can reach is one.
        JoinError: the folder is not private, or a stranger answered.
        CommTimeout: some ranks did not come.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to size - 1, got rank {rank!r} of {size!r}")
    if backend not in ("shm", "zmq"):
        raise ValueError(f"unknown backend {backend!r}; expected 'shm' or 'zmq'")
    key = token_key(token)
    place = _Place.parse(address)
    patience = Patience(deadline_after(timeout_s), watch)
    if place.port:
        if backend == "shm":
            raise ValueError("shm needs an ipc:///folder address: memory is passed by Unix socket")
        return _connect_tcp(rank, size, place, key, timeout_s, patience)
    with _PrivateFolder(rank, place.path, patience) as folder:
        if backend == "zmq":
            entry = Ticket("zmq", rank, size, "", "", place.path, "")
            return enter_folder(entry, folder, key, timeout_s, watch)
        return _connect_shm(rank, size, folder, key, timeout_s, patience)


class _Place(NamedTuple):
    path: str
    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> _Place:
        scheme, separator, rest = address.partition("://")
        if separator and scheme == "ipc" and os.path.isabs(rest):
            return cls(rest.rstrip("/"), "", 0)
        host, _, port = rest.rpartition(":")
        if separator and scheme == "tcp" and port.isdigit() and int(port) > 0:
            if host == "localhost" or host.startswith("127."):
                return cls("", "127.0.0.1" if host == "localhost" else host, int(port))
            raise ValueError(
                f"address {address!r} is not on the loopback interface; expected "
                "tcp://127.0.0.1:port, since messages are not encrypted"
            )
        raise ValueError(
            f"cannot read address {address!r}; expected ipc:///absolute/folder or "
            "tcp://127.0.0.1:port"
        )


class _PrivateFolder:
    """The folder of an ipc address, made by rank 0 if it is missing."""

    def __init__(self, rank: int, path: str, patience: Patience) -> None:
        self._folder = SocketFolder(path)
        self._made = False
        self._rank = rank
        self._patience = patience

    def __enter__(self) -> SocketFolder:
        path = self._folder.path
        if self._rank == 0:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
                self._made = True
        while not os.path.isdir(path):
            self._patience.look(lambda: {0: f"has not made {path}"})
            time.sleep(SLICE_S)
        self._folder.check()
        return self._folder

    def __exit__(self, *exc_info: object) -> None:
        if self._made:
            self._folder.remove()


def _connect_shm(
    rank: int, size: int, folder: SocketFolder, key: bytes, timeout_s: float, patience: Patience
) -> Communicator:
    path = folder.socket("desk")
    if rank == 0:
        group_id = secrets.token_bytes(16)
        fd = create_block(size, group_id)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # left by a rank 0 that was killed
                listener.bind(path)
                desk = Desk(listener, size, key, patience)
                try:
                    desk.receive_all()
                    for line in desk.lines.values():
                        line.send_goods({"group_id": group_id.hex()})
                        socket.send_fds(line.raw, [b"F"], [fd])
                finally:
                    desk.close()
                    os.unlink(path)
        except BaseException:
            os.close(fd)
            raise
    else:
        line = call_desk(lambda: (socket.socket(socket.AF_UNIX), path), rank, size, key, patience)
        try:
            line.send_goods({})
            group_id = bytes.fromhex(line.receive_goods()["group_id"])
            fd = _receive_fd(line, patience)
        finally:
            line.close()
    try:
        fabric = ShmFabric(rank, size, patience.watch, fd=fd, group_id=group_id)
    finally:
        os.close(fd)
    return meet(fabric, patience.deadline, timeout_s)


def _receive_fd(line: Line, patience: Patience) -> int:
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    while True:
        try:
            _, fds, _, _ = socket.recv_fds(line.raw, 1, 1, flags)
        except socket.timeout:
            patience.look(lambda: {0: "does not send the memory"})
            continue
        if not fds:
            raise JoinError("rank 0 hung up before it sent the memory")
        return fds[0]


def _connect_tcp(
    rank: int, size: int, place: _Place, key: bytes, timeout_s: float, patience: Patience
) -> Communicator:
    from ._backends.zmq import ZmqFabric

    fabric = ZmqFabric(rank, size, patience.watch, key=key)
    try:
        own = {
            str(other): fabric.bind(other, f"tcp://{place.host}:*")
            for other in range(rank + 1, size)
        }
        table = _exchange(rank, size, place, own, key, patience)
        for other in range(rank):
            fabric.connect(other, _checked(table[str(other)][str(rank)], place.host))
    except BaseException:
        fabric.close()
        raise
    return meet(fabric, patience.deadline, timeout_s)


def _exchange(
    rank: int, size: int, place: _Place, own: Goods, key: bytes, patience: Patience
) -> Goods:
    """Give the own endpoints, and get everybody's."""
    where = (place.host, place.port)
    if rank:
        line = call_desk(lambda: (socket.socket(), where), rank, size, key, patience)
        try:
            line.send_goods(own)
            return line.receive_goods()
        finally:
            line.close()
    table: Goods = {"0": own}
    if size == 1:
        return table
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        desk = Desk(listener, size, key, patience)
        try:
            desk.receive_all()
            table.update({str(other): goods for other, goods in desk.goods.items()})
            for line in desk.lines.values():
                line.send_goods(table)
        finally:
            desk.close()
    return table


def _checked(endpoint: str, host: str) -> str:
    if not endpoint.startswith(f"tcp://{host}:"):
        raise JoinError(f"a rank listens at {endpoint!r}, expected an endpoint on {host}")
    return endpoint
