"""Strangers at the desk where ranks meet: none gets in, none keeps a rank out."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import pickle
import select
import socket
import struct
import threading
import time

import pytest

from synk_comm import CommTimeout, JoinError, PeerLost, connect, local_group
from synk_comm._meeting import link as lines
from synk_comm._meeting import server as desk
from synk_comm._system.auth import Handshake, Seal, derived, token_key
from synk_comm.testing import in_threads

TOKEN = "a token that nobody can guess"
KEY = token_key(TOKEN)


class Bomb:
    """What a stranger would send to run code by unpickling."""

    def __reduce__(self):
        return (os._exit, (66,))


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    pickle.dumps(Bomb()) * 50,
    b"synkcom2" + bytes(3),
    b"synkcom2" + struct.pack("<I", 1) + bytes(32) + bytes(32),
    b"synkcom2" + struct.pack("<I", 0xFFFFFFFF) + bytes(32),
    b"\xff" * 100_000,
    b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(200),
]


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def dial(port, timeout_s=10.0):
    """Connect as soon as somebody listens."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def grouped(port, size, before_last, backend="zmq"):
    """Make a group whose last rank only comes after ``before_last()``; return what ranks got."""

    def run(seat):
        if seat.rank == size - 1:
            before_last()
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, size, address, token=TOKEN, backend=backend, timeout_s=20) as comm:
            return float(comm.all_reduce(1.0))

    return in_threads(local_group(size), run)


def test_garbage_at_the_desk(port):
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
    assert time.monotonic() - began < desk._STRANGER_S
    for stranger in kept:
        stranger.close()


def test_a_flood_does_not_lock_ranks_out(port):
    """More connections than the desk will hear at once, renewed for as long as ranks join."""
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
        while len(opened) < 3 * desk._STRANGERS:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    try:
        assert grouped(port, 3, begin) == [3.0] * 3
    finally:
        stop.set()
        for thread in floods:
            thread.join()


def test_the_desk_shows_out_those_who_have_been_silent_longest(port):
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    patience = lines.Patience(0, time.monotonic() + 2, None)
    reception = desk.Desk(listener, 2, KEY, patience, {})
    limit = desk._STRANGERS + 4
    strangers = [dial(port) for _ in range(limit + 10)]
    waiting = threading.Event()

    def wait():
        with pytest.raises(CommTimeout):
            reception.receive_all(waiting.set)

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
    """A man in the middle: passes all on between one caller and the desk, and writes it down."""

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
    mark = sent.mark(b"goods")
    assert not other.seal(1).check(mark, b"goods")
    assert not Handshake(KEY, 1, 0).seal(0).check(mark, b"goods")
    assert received.check(mark, b"goods")
    assert not received.check(mark, b"goods")
    assert not Seal(b"another key").check(mark, b"goods")
    assert derived(KEY, "a") != derived(KEY, "b") != KEY


def line_pair():
    ends = socket.socketpair()
    pair = [lines.Line(end) for end in ends]
    hands = [Handshake(KEY, 0, 1), Handshake(KEY, 1, 0)]
    hands[0].meet(hands[1].nonce)
    hands[1].meet(hands[0].nonce)
    pair[0].shake_hands(hands[0], 0, 1)
    pair[1].shake_hands(hands[1], 1, 0)
    return pair


def test_goods_that_are_too_long_or_cut_short_or_no_goods():
    patience = lines.Patience(0, time.monotonic() + 5, None)
    sender, receiver = line_pair()
    sender.raw.sendall(struct.pack("<I", lines._MAX_GOODS + 1))
    with pytest.raises(JoinError, match="announced 16777217 bytes, at most"):
        receiver.take_goods()
    sender.close()
    receiver.close()

    sender, receiver = line_pair()
    sender.send_goods({"said": "x" * 1000}, patience)
    assert receiver.take_goods() == {"said": "x" * 1000}
    sender.raw.sendall(struct.pack("<I", 100) + bytes(50))
    assert receiver.take_goods() is None
    sender.close()
    with pytest.raises(lines.HungUp):
        receiver.take_goods()
    receiver.close()

    sender, receiver = line_pair()
    sender.send_goods([1, 2], patience)
    with pytest.raises(JoinError, match="no goods"):
        receiver.take_goods()
    bomb = pickle.dumps(Bomb())
    sender.raw.sendall(struct.pack("<I", len(bomb)) + bytes(32) + bomb)
    with pytest.raises(JoinError, match="seal"):
        receiver.take_goods()
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


def test_desk_talk_holds_no_secret(port):
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
