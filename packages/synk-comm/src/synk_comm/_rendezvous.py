"""Groups of processes without a common parent: they meet at an address, and prove a token.

Rank 0 keeps a desk at the address; each other rank calls there, with retries until rank 0 is up::

    rank r                                    rank 0
    magic, rank, size, nonce    -->           (the caller's user is checked on Unix sockets)
                                <--           nonce, proof
    proof                       -->
    goods: JSON, sealed         -->           waits for all ranks
                                <--           everybody's goods: JSON, sealed (+ a descriptor)

"Sealed" is a length and a keyed digest: nothing is parsed before the digest is right, and nothing
here is ever unpickled. For shm the descriptor of the group's memory travels (SCM_RIGHTS); for zmq
over TCP the endpoints do; zmq over a folder needs no desk.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from ._backends.shm import ShmFabric
from ._backends.shm import create as create_block
from ._fabric import SLICE_S, Watch
from ._folder import SocketFolder
from ._groups import DEFAULT_TIMEOUT_S, Ticket, enter_folder, meet
from ._guard import deadline_after
from ._secret import NONCE_BYTES, PROOF_BYTES, Handshake, token_key
from .abc import Communicator
from .exceptions import CommTimeout, JoinError

_MAGIC = b"synkcom1"
_CALL = struct.Struct(f"<8sII{NONCE_BYTES}s")
_LENGTH = struct.Struct("<I")
_MAX_GOODS = 1 << 20
_STRANGER_S = 2.0
"""How long the desk listens to one caller who says nothing."""

Goods = Dict[str, Any]


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
    patience = _Patience(deadline_after(timeout_s), watch)
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


class _Patience:
    """A deadline and a watch, looked at between short waits."""

    def __init__(self, deadline: float, watch: Watch | None) -> None:
        self.deadline = deadline
        self.watch = watch
        self._began = time.monotonic()

    def look(self, waiting_for: Callable[[], Dict[int, str]]) -> None:
        """Raise if the time is up, or if the watch does."""
        if self.watch is not None:
            self.watch()
        now = time.monotonic()
        if now >= self.deadline:
            missing = waiting_for()
            ranks = ", ".join(map(str, missing))
            raise CommTimeout(
                f"waited {now - self._began:.3g} s for rank(s) {ranks} to join", missing=missing
            )


class _PrivateFolder:
    """The folder of an ipc address, made by rank 0 if it is missing."""

    def __init__(self, rank: int, path: str, patience: _Patience) -> None:
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


class _Line:
    """A connection between rank 0's desk and one other rank."""

    def __init__(self, raw: socket.socket, patience: _Patience) -> None:
        raw.settimeout(SLICE_S)
        if raw.family == socket.AF_INET:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw
        self._patience = patience
        self._seals = (b"", b"")  # keys of what is sent, and of what is received

    def shake_hands(self, handshake: Handshake, own_rank: int, peer_rank: int) -> None:
        self._seals = handshake.cookie(own_rank), handshake.cookie(peer_rank)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.raw.send(view) :]
            except socket.timeout:
                self._patience.look(lambda: {-1: "does not read"})
            except OSError as exc:
                raise JoinError(f"the other side hung up: {exc}") from exc

    def receive(self, nbytes: int, until: Optional[float] = None) -> bytes:
        data = b""
        while len(data) < nbytes:
            try:
                more = self.raw.recv(nbytes - len(data))
            except socket.timeout:
                self._patience.look(lambda: {-1: "does not answer"})
                if until is not None and time.monotonic() > until:
                    raise JoinError("the caller says nothing") from None
                continue
            except OSError as exc:
                raise JoinError(f"the other side hung up: {exc}") from exc
            if not more:
                raise JoinError(
                    "the other side hung up: it has failed, or has another token or size"
                )
            data += more
        return data

    def send_goods(self, goods: Goods) -> None:
        content = json.dumps(goods).encode()
        digest = hmac.new(self._seals[0], content, "sha256").digest()
        self.send(_LENGTH.pack(len(content)) + digest + content)

    def receive_goods(self) -> Goods:
        length = _LENGTH.unpack(self.receive(_LENGTH.size))[0]
        if length > _MAX_GOODS:
            raise JoinError(f"the other side announced {length} bytes, at most {_MAX_GOODS} fit")
        digest = self.receive(PROOF_BYTES)
        content = self.receive(length)
        if not hmac.compare_digest(digest, hmac.new(self._seals[1], content, "sha256").digest()):
            raise JoinError("the seal of what the other side sent is broken")
        goods: Goods = json.loads(content)
        return goods

    def close(self) -> None:
        self.raw.close()


class _Desk:
    """Where rank 0 receives the others."""

    def __init__(self, listener: socket.socket, size: int, key: bytes, patience: _Patience) -> None:
        self._listener = listener
        self._size = size
        self._key = key
        self._patience = patience
        self.lines: Dict[int, _Line] = {}
        self.goods: Dict[int, Goods] = {}
        listener.listen(size)
        listener.settimeout(SLICE_S)

    def receive_all(self) -> None:
        """Wait until every other rank has called and shown its goods."""
        while len(self.lines) < self._size - 1:
            try:
                raw, _ = self._listener.accept()
            except socket.timeout:
                self._patience.look(self._absent)
                continue
            line = _Line(raw, self._patience)
            try:
                self._receive(line)
            except JoinError:
                # A stranger, or a rank with another token, which learns it from the hang-up.
                line.close()

    def _receive(self, line: _Line) -> None:
        _check_user(line.raw)
        until = time.monotonic() + _STRANGER_S
        magic, rank, size, nonce = _CALL.unpack(line.receive(_CALL.size, until))
        if magic != _MAGIC or size != self._size or not 0 < rank < size or rank in self.lines:
            raise JoinError("this is no rank of this group")
        handshake = Handshake(self._key, 0, rank)
        handshake.meet(nonce)
        line.send(handshake.nonce + handshake.proof())
        if not handshake.check(line.receive(PROOF_BYTES, until)):
            raise JoinError("wrong token")
        line.shake_hands(handshake, 0, rank)
        self.goods[rank] = line.receive_goods()
        self.lines[rank] = line

    def _absent(self) -> Dict[int, str]:
        return {r: "has not called" for r in range(1, self._size) if r not in self.lines}

    def close(self) -> None:
        self._listener.close()
        for line in self.lines.values():
            line.close()


def _call_desk(
    make: Callable[[], Tuple[socket.socket, Any]],
    rank: int,
    size: int,
    key: bytes,
    patience: _Patience,
) -> _Line:
    """Call rank 0's desk, as soon as it is there."""
    while True:
        raw, where = make()
        try:
            raw.settimeout(SLICE_S)
            raw.connect(where)
            break
        except OSError:
            raw.close()
            patience.look(lambda: {0: "does not listen yet"})
            time.sleep(SLICE_S)
    line = _Line(raw, patience)
    try:
        _check_user(raw)
        handshake = Handshake(key, rank, 0)
        line.send(_CALL.pack(_MAGIC, rank, size, handshake.nonce))
        handshake.meet(line.receive(NONCE_BYTES))
        if not handshake.check(line.receive(PROOF_BYTES)):
            raise JoinError("who listens at this address does not know the token of this group")
        line.send(handshake.proof())
        line.shake_hands(handshake, rank, 0)
    except BaseException:
        line.close()
        raise
    return line


def _check_user(raw: socket.socket) -> None:
    """Raise JoinError if the other end of a Unix socket is another user's."""
    if raw.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        raise JoinError(f"the other end belongs to user {user}, not to this one")


def _connect_shm(
    rank: int, size: int, folder: SocketFolder, key: bytes, timeout_s: float, patience: _Patience
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
                desk = _Desk(listener, size, key, patience)
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
        line = _call_desk(lambda: (socket.socket(socket.AF_UNIX), path), rank, size, key, patience)
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


def _receive_fd(line: _Line, patience: _Patience) -> int:
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
    rank: int, size: int, place: _Place, key: bytes, timeout_s: float, patience: _Patience
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
    rank: int, size: int, place: _Place, own: Goods, key: bytes, patience: _Patience
) -> Goods:
    """Give the own endpoints, and get everybody's."""
    where = (place.host, place.port)
    if rank:
        line = _call_desk(lambda: (socket.socket(), where), rank, size, key, patience)
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
        desk = _Desk(listener, size, key, patience)
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
