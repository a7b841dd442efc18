"""Strangers at the server where ranks meet: none gets in, none keeps a rank out."""

from __future__ import annotations

import contextlib
import hmac
import json
import pickle
import select
import socket
import struct
import threading
import time

import _helpers
import pytest
from _helpers import TOKEN, Bomb, dial

from synk_comm import CommTimeout, JoinError, PeerLost, connect, local_group
from synk_comm._meeting import link, server
from synk_comm._system.auth import Handshake, Seal, derived, token_key
from synk_comm.testing import in_threads

KEY = token_key(TOKEN)


GARBAGE = [
    *_helpers.GARBAGE,
    b"synkcom2" + bytes(3),
    b"synkcom2" + struct.pack("<I", 1) + bytes(32) + bytes(32),
    b"synkcom2" + struct.pack("<I", 0xFFFFFFFF) + bytes(32),
]


def grouped(port, size, before_last, backend="zmq"):
    """Make a group whose last rank only comes after ``before_last()``; return what ranks got."""

    def run(seat):
        if seat.rank == size - 1:
            before_last()
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, size, address, token=TOKEN, backend=backend, timeout_s=20) as comm:
            return float(comm.all_reduce(1.0))

    return in_threads(local_group(size), run)


def test_garbage_at_the_server(port):
    kept = []

    def pester():
        for garbage in GARBAGE:
            stranger = dial(port)
            kept.append(stranger)
            with contextlib.suppress(OSError):
                stranger.sendall(garbage)
        with dial(port):
            pass  # a scanner, which hangs up at once

    try:
        assert grouped(port, 3, pester) == [3.0] * 3
    finally:
        for stranger in kept:
            stranger.close()


def test_strangers_who_say_nothing_do_not_take_turns(port):
    """Heard one after the other they would take seconds each."""
    kept = []
    began = time.monotonic()
    assert grouped(port, 2, lambda: kept.extend(dial(port) for _ in range(20))) == [2.0] * 2
    assert time.monotonic() - began < server._HANDSHAKE_S
    for stranger in kept:
        stranger.close()


def test_a_flood_does_not_lock_ranks_out(port):
    """More connections than the server reads from at once, renewed for as long as ranks join."""
    stop = threading.Event()
    opened = []

    def flood():
        mine = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                mine.append(socket.create_connection(("127.0.0.1", port), timeout=0.2))
                opened.append(1)
            if len(mine) > 150:
                mine.pop(0).close()
        for stranger in mine:
            stranger.close()

    floods = [threading.Thread(target=flood) for _ in range(2)]

    def begin():
        dial(port).close()
        for thread in floods:
            thread.start()
        deadline = time.monotonic() + 10
        while len(opened) < 3 * server._MAX_CLIENTS:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    try:
        assert grouped(port, 3, begin) == [3.0] * 3
    finally:
        stop.set()
        for thread in floods:
            thread.join()


def test_the_server_drops_those_silent_the_longest(port):
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    waits = link.WaitLimit(0, time.monotonic() + 2, None)
    rendezvous = server.Server(listener, 2, KEY, waits, {})
    limit = server._MAX_CLIENTS + 4
    strangers = [dial(port) for _ in range(limit + 10)]
    waiting = threading.Event()

    def wait():
        with pytest.raises(CommTimeout):
            rendezvous.accept_all(waiting.set)

    done = threading.Thread(target=wait)
    done.start()
    waiting.wait(2)
    deadline = time.monotonic() + 1.5
    closed = set()
    while time.monotonic() < deadline and len(closed) < 10:
        ready, _, _ = select.select(strangers, [], [], 0.05)
        closed.update(strangers.index(stranger) for stranger in ready)
    assert closed == set(range(10))
    done.join(5)
    for stranger in strangers:
        assert stranger.recv(1) == b""  # nobody was told anything
        stranger.close()
    listener.close()


class Tap:
    """A man in the middle: passes all on between one client and the server, and writes it down."""

    def __init__(self, port, change=lambda way, data: data):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        self.heard = {"out": b"", "in": b""}
        self._to = port
        self._change = change
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        self.listener.settimeout(10)
        caller, _ = self.listener.accept()
        with caller, dial(self._to) as server:
            ways = {caller: ("out", server), server: ("in", caller)}
            with contextlib.suppress(OSError):
                while True:
                    for source in select.select(list(ways), [], [], 10)[0]:
                        name, target = ways[source]
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        self.heard[name] += data
                        target.sendall(self._change(name, data))

    def close(self):
        self._thread.join(15)
        self.listener.close()


def test_a_recorded_call_cannot_be_played_again(port):
    tap = Tap(port)
    answers = []

    def join_through_the_tap(seat):
        own = port if seat.rank == 0 else tap.port
        address = f"tcp://127.0.0.1:{own}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="shm", timeout_s=20) as comm:
            comm.barrier()

    in_threads(local_group(2), join_through_the_tap)
    tap.close()
    recorded = tap.heard["out"]
    assert recorded.startswith(b"synkcom2")
    assert len(recorded) > 300  # the call, the proof, the card

    def play_again():
        with dial(port) as stranger:
            stranger.sendall(recorded)
            stranger.settimeout(10)
            answer = b""
            with contextlib.suppress(ConnectionResetError):  # hung up with more to read
                while len(answer) < 4096:
                    more = stranger.recv(4096)
                    if not more:
                        break
                    answer += more
            answers.append(answer)

    assert grouped(port, 2, play_again) == [2.0] * 2
    (answer,) = answers
    assert len(answer) == 64  # a nonce and a proof for other nonces; no welcome
    assert answer != tap.heard["in"][:64]


@pytest.mark.parametrize("way", ["out", "in"])
def test_what_is_changed_on_the_way_is_noticed(port, way):
    seen = {"out": 0, "in": 0}

    def change(name, data):
        if name == way and b'{"' in data:
            seen[name] += 1
            return data.replace(b'{"', b'["', 1)
        return data

    tap = Tap(port, change)

    def run(seat):
        address = f"tcp://127.0.0.1:{port if seat.rank == 0 else tap.port}"
        try:
            connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=1.5).close()
        except (JoinError, CommTimeout, PeerLost) as exc:
            return exc

    failures = in_threads(local_group(2), run)
    tap.close()
    assert seen[way]
    assert all(failures)
    if way == "in":
        assert "seal" in str(failures[1])


def test_a_seal_is_good_for_one_message_of_one_direction():
    one, other = Handshake(KEY, 0, 1), Handshake(KEY, 1, 0)
    one.meet(other.nonce)
    other.meet(one.nonce)
    sent, received = one.seal(0), other.seal(0)
    mark = sent.mark(b"frame")
    assert not other.seal(1).check(mark, b"frame")
    assert not Handshake(KEY, 1, 0).seal(0).check(mark, b"frame")
    assert received.check(mark, b"frame")
    assert not received.check(mark, b"frame")
    assert not Seal(b"another key").check(mark, b"frame")
    assert derived(KEY, "a") != derived(KEY, "b") != KEY


def line_pair():
    ends = socket.socketpair()
    pair = [link.Connection(end) for end in ends]
    hands = [Handshake(KEY, 0, 1), Handshake(KEY, 1, 0)]
    hands[0].meet(hands[1].nonce)
    hands[1].meet(hands[0].nonce)
    pair[0].seal_by(hands[0], 0, 1)
    pair[1].seal_by(hands[1], 1, 0)
    return pair


def test_goods_that_are_too_long_or_cut_short_or_no_goods():
    limit = link.WaitLimit(0, time.monotonic() + 5, None)
    sender, receiver = line_pair()
    sender.raw.sendall(struct.pack("<I", link._MAX_FRAME + 1))
    with pytest.raises(JoinError, match="announced 16777217 bytes, at most"):
        receiver.receive_frame()
    sender.close()
    receiver.close()

    sender, receiver = line_pair()
    sender.send_frame({"said": "x" * 1000}, limit)
    assert receiver.receive_frame() == {"said": "x" * 1000}
    sender.raw.sendall(struct.pack("<I", 100) + bytes(50))
    assert receiver.receive_frame() is None
    sender.close()
    with pytest.raises(link.Disconnected):
        receiver.receive_frame()
    receiver.close()

    sender, receiver = line_pair()
    sender.send_frame([1, 2], limit)
    with pytest.raises(JoinError, match="no frame"):
        receiver.receive_frame()
    bomb = pickle.dumps(Bomb())
    sender.raw.sendall(struct.pack("<I", len(bomb)) + bytes(32) + bomb)
    with pytest.raises(JoinError, match="seal"):
        receiver.receive_frame()
    sender.close()
    receiver.close()


def test_who_listens_must_know_the_token_too(port):
    """A stranger that has taken the address learns nothing but a nonce."""
    heard = []

    def impostor():
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
            caller, _ = listener.accept()
            with caller:
                heard.append(caller.recv(4096))
                caller.sendall(bytes(64))
                caller.settimeout(5)
                with contextlib.suppress(OSError):
                    heard.append(caller.recv(4096))

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(JoinError, match="does not know the token"):
        connect(1, 2, f"tcp://127.0.0.1:{port}", token=TOKEN, timeout_s=10)
    thread.join()
    assert heard[0][:12] == b"synkcom2" + struct.pack("<I", 1)
    assert len(heard[0]) == 44
    assert heard[1:] == [b""]


def test_handshake_holds_no_secret(port):
    tap = Tap(port)

    def run(seat):
        address = f"tcp://127.0.0.1:{port if seat.rank == 0 else tap.port}"
        connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=20).close()

    in_threads(local_group(2), run)
    tap.close()
    said = tap.heard["in"] + tap.heard["out"]
    start = said.index(b'{"')
    assert json.JSONDecoder().raw_decode(said[start:].decode("latin-1"))
    for secret in (TOKEN.encode(), KEY, KEY.hex().encode()):
        assert secret not in said
    proof = said[32:64]
    assert proof != hmac.new(KEY, b"", "sha256").digest()
