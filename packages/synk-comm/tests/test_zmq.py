"""The zmq fabric itself: parts, pieces, smaller groups, and its failures."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings

import numpy as np
import pytest
import zmq

from synk_comm import AbortedError, PeerLost
from synk_comm._backends.zmq.fabric import ZmqFabric, received
from synk_comm._system.folder import SocketFolder
from synk_comm.testing import in_threads

KEY = b"k" * 32


def soon(seconds=20.0):
    return time.monotonic() + seconds


def wired(size, *, watch=None):
    folder = SocketFolder.named(os.urandom(8)).make()
    fabrics = [ZmqFabric(rank, size, watch, KEY, folder) for rank in range(size)]
    in_threads(fabrics, lambda fabric: fabric.meet(soon()))
    assert not os.path.exists(folder.path)
    return fabrics


@pytest.fixture
def pair():
    fabrics = wired(2)
    yield fabrics
    for fabric in fabrics:
        fabric.close()


@pytest.mark.parametrize("length", [0, 10, 25])
def test_a_message_that_is_cut_short_ends_the_group(pair, length):
    peer = pair[1].peers[0]
    peer.send(peer.envelope(b"R", 9, b"")[:length])
    with pytest.raises(PeerLost, match=r"no message|another process"):
        pair[0].sync(None, 0, soon())


def test_the_message_after_one_cut_short_is_not_taken_for_its_rest(pair, monkeypatch):
    """A signal came between its frames: the peer sees that this rank is gone."""
    whole = zmq.Socket.send_multipart

    def struck(socket, frames, flags=0):
        if len(frames) == 1:
            return whole(socket, frames, flags)
        socket.send(frames[0], flags | zmq.SNDMORE)
        raise KeyboardInterrupt

    monkeypatch.setattr(zmq.Socket, "send_multipart", struck)
    with pytest.raises(KeyboardInterrupt):
        pair[0].put(1, b"header", np.arange(40, dtype=np.uint8))
    monkeypatch.undo()
    pair[0].abort("given up")
    with pytest.raises(PeerLost, match="cut off"):
        pair[1].attend(lambda: pair[1].has_come(0), 0, soon(), sending=False)


def test_a_message_without_the_cookie_of_its_sender_ends_the_group(pair):
    own, theirs = pair[0].peers[1], pair[1].peers[0]
    theirs.send(own.envelope(b"R", 1, b""))
    with pytest.raises(PeerLost, match="another process has taken its place"):
        pair[0].sync(None, 0, soon())


def test_a_peer_with_another_key_is_no_member():
    folder = SocketFolder.named(os.urandom(8)).make()
    member = ZmqFabric(0, 2, None, KEY, folder)
    stranger = ZmqFabric(1, 2, None, b"s" * 32, folder)

    def meet(fabric):
        with pytest.raises(PeerLost, match=r"another process|cut off|closed") as caught:
            try:
                fabric.meet(soon())
            finally:
                fabric.close()
        return str(caught.value)

    assert "another process has taken its place" in in_threads([member, stranger], meet)[0]
    assert not os.path.exists(folder.path)


def test_a_rank_that_gives_up_while_others_join_says_why():
    folder = SocketFolder.named(os.urandom(8)).make()
    fabrics = [ZmqFabric(rank, 3, None, KEY, folder) for rank in range(2)]

    def run(fabric):
        try:
            if fabric.rank:
                fabric._wait(lambda: [] if fabric.peers[0].met else [0], soon(), "join")
                fabric.abort("given up")
            with pytest.raises(AbortedError, match="given up"):
                fabric.meet(soon())
        finally:
            fabric.close()

    for peer in fabrics[1].peers.values():
        if peer.rank == 0:
            peer.send(peer.envelope(b"H", 0, b""))
    in_threads(fabrics, run)
    assert not os.path.exists(folder.path)


def test_a_rank_that_dies_while_others_join_is_lost():
    folder = SocketFolder.named(os.urandom(8)).make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads at a fork
        pid = os.fork()
    if not pid:
        try:
            ZmqFabric(1, 3, None, KEY, folder).meet(soon())  # rank 2 never comes
        finally:
            os._exit(1)

    def kill_once_met():
        if fabric.peers[1].met:
            os.kill(pid, signal.SIGKILL)

    fabric = ZmqFabric(0, 3, kill_once_met, KEY, folder)
    try:
        with pytest.raises(PeerLost, match="its process has ended") as caught:
            fabric.meet(soon())
        assert caught.value.rank == 1
    finally:
        fabric.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not os.path.exists(folder.path)


def test_a_fabric_that_was_forgotten_goes_without_hanging():
    def forget():
        fabrics = wired(2)
        fabrics.append(fabrics)  # only the garbage collector finds them
        return fabrics[0]._context

    context = forget()
    gc.collect()
    assert context.closed


class Struck(Exception):
    pass


def test_no_signal_is_lost_while_large_messages_are_taken_in(pair, monkeypatch):
    """Frames of pyzmq swallow what a handler raises while they are freed."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    data, most = np.ones(1 << 20, np.uint8), 1000 if os.environ.get("SYNK_TESTS") == "all" else 250
    source, peer = pair[0].peers[1].socket, pair[1].peers[0]
    strikes = swallowed = 0

    def strike(*_):
        nonlocal strikes
        strikes += 1
        raise Struck

    def take_in_until_struck():
        # In a function of its own: all of its loop is inside the caller's `try`, while of a loop
        # that stands there itself some versions of Python leave a jump outside.
        seen = strikes
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        while strikes == seen:
            source.send(data, zmq.NOBLOCK)
            while not received(peer.socket):
                pass

    before = signal.signal(signal.SIGALRM, strike)
    until = time.monotonic() + 20.0
    try:
        while strikes < most and time.monotonic() < until:
            try:
                take_in_until_struck()
                swallowed += 1
            except Struck:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert strikes > 100
    assert swallowed == 0
