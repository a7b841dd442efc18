"""Strangers at the data sockets of the zmq back-end: none gets in, none keeps a rank out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import _helpers
import numpy as np
import pytest
import zmq
from _helpers import TOKEN, dial

from synk_comm import PeerLost, connect, local_group
from synk_comm._backends.zmq import sockets
from synk_comm._backends.zmq.fabric import ZmqFabric
from synk_comm._meeting.host import Host
from synk_comm.testing import in_threads

GARBAGE = [
    *_helpers.GARBAGE,
    b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(15) + bytes(40) + b"\x02" + b"\x7f" * 8,
]


def total(port):
    """Return what a group of two computes over zmq."""

    def run(seat):
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=20) as comm:
            return float(comm.all_reduce(1.0))

    return in_threads(local_group(2), run)


@pytest.fixture(params=["plain", "curve"])
def mechanism(request, monkeypatch):
    if request.param == "curve":
        monkeypatch.setattr(Host, "near", lambda self, other: self is other)
    return request.param


def knocking(monkeypatch, knock):
    """Let ``knock(endpoint, card)`` happen at rank 0's data socket before rank 1 connects."""
    original = ZmqFabric._connect

    def connect_late(self, cards):
        if self.rank == 1:
            knock(cards[0]["listens"]["1"], cards[0])
        original(self, cards)

    monkeypatch.setattr(ZmqFabric, "_connect", connect_late)


def test_garbage_and_silence_at_a_data_socket(port, mechanism, monkeypatch):
    kept = []

    def knock(endpoint, card):
        for garbage in GARBAGE:
            kept.append(dial(int(endpoint.rpartition(":")[2])))
            with contextlib.suppress(OSError):
                kept[-1].sendall(garbage)

    knocking(monkeypatch, knock)
    try:
        assert total(port) == [2.0] * 2
    finally:
        for stranger in kept:
            stranger.close()


def test_a_stranger_with_zeromq_gets_nothing_in(port, mechanism, monkeypatch):
    """Without key or password, with wrong ones, and with the public key of the server alone."""
    context = zmq.Context()
    strangers = []

    def stranger(endpoint, **options):
        pair = context.socket(zmq.PAIR)
        pair.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            pair.setsockopt(getattr(zmq, name), value)
        events = pair.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        pair.connect(endpoint)
        # Who has been shown out already has nobody to send to, and would wait for ever.
        with contextlib.suppress(zmq.Again):
            pair.send(b"H" + bytes(32), zmq.DONTWAIT)
        strangers.append((pair, events))

    def knock(endpoint, card):
        stranger(endpoint)
        stranger(endpoint, PLAIN_USERNAME=b"synk-comm", PLAIN_PASSWORD=b"guessed")
        if mechanism == "curve":
            public, secret = zmq.curve_keypair()
            keys = {"CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret}
            stranger(endpoint, CURVE_SERVERKEY=card["key"].encode(), **keys)
        time.sleep(0.3)

    knocking(monkeypatch, knock)

    def run(seat):
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=20) as comm:
            comm.barrier()
            # They knock on while the group works: the door stays shut.
            for _ in range(20):
                comm.all_reduce(np.ones(1000))
                time.sleep(0.02)
            return float(comm.all_reduce(1.0))

    try:
        assert in_threads(local_group(2), run) == [2.0] * 2
        assert len(strangers) == (3 if mechanism == "curve" else 2)
        for pair, events in strangers:
            assert not events.poll(0)
            assert not pair.poll(0)
    finally:
        for pair, events in strangers:
            pair.disable_monitor()
            events.close(0)
            pair.close(0)
        context.term()


def test_a_stranger_that_hangs_up_is_not_taken_for_the_peer(port, mechanism, monkeypatch):
    monkeypatch.setattr(sockets, "_HANDSHAKE_MS", 300)
    kept = []
    knocking(
        monkeypatch,
        lambda endpoint, card: kept.extend(dial(int(endpoint.rpartition(":")[2])) for _ in "abc"),
    )

    def run(seat):
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=20) as comm:
            comm.barrier()
            if seat.rank == 0:
                kept.pop().close()
                time.sleep(0.8)  # the others are shown out meanwhile
            return float(comm.all_reduce(1.0))

    assert in_threads(local_group(2), run) == [2.0] * 2
    for stranger in kept:
        stranger.close()


def test_a_frame_that_is_too_long_ends_the_connection(port, monkeypatch):
    def run(seat):
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=20) as comm:
            comm.barrier()
            peer = comm._steps.fabric._peers[1 - seat.rank]
            if seat.rank == 1:
                peer.send(peer.envelope(b"R", 9, b""), bytes(8 << 20))
                time.sleep(0.5)
                return None
            with pytest.raises(PeerLost):
                comm.barrier()
            return len(peer.inbox)

    assert in_threads(local_group(2), run) == [0, None]


@pytest.mark.parametrize("short", [0, 10, 25])
def test_a_message_that_is_cut_short(port, short):
    def run(seat):
        address = f"tcp://127.0.0.1:{port}"
        with connect(seat.rank, 2, address, token=TOKEN, backend="zmq", timeout_s=20) as comm:
            peer = comm._steps.fabric._peers[1 - seat.rank]
            if seat.rank == 1:
                comm.barrier()
                peer.send(peer.envelope(b"R", 9, b"")[:short])
                time.sleep(0.3)
                return
            # It may come while this rank is still in its first barrier.
            with pytest.raises(PeerLost, match=r"no message|another process"):
                for _ in range(2):
                    comm.barrier()

    in_threads(local_group(2), run)


def test_a_flood_at_a_data_socket(port, mechanism, monkeypatch):
    """Connections all the time, from before the ranks connect until they are done."""
    stop = threading.Event()
    opened = []
    floods = []

    def flood(there):
        mine = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                mine.append(socket.create_connection(("127.0.0.1", there), timeout=0.2))
                opened.append(1)
            if len(mine) > 100:
                mine.pop(0).close()
        for stranger in mine:
            stranger.close()

    def knock(endpoint, card):
        floods.append(threading.Thread(target=flood, args=(int(endpoint.rpartition(":")[2]),)))
        floods[0].start()
        deadline = time.monotonic() + 10
        while len(opened) < 150:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    knocking(monkeypatch, knock)
    try:
        assert total(port) == [2.0] * 2
    finally:
        stop.set()
        for thread in floods:
            thread.join()
    assert floods
