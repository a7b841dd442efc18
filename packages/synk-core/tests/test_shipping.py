"""Rows on demand: whatever a program writes, other hosts compute with the values of now.

The hosts are simulated: leaders take in what orders bring from queues.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import synk_comm
from synk_core._master.acts import ActTable, Prepared
from synk_core._master.shipping import Shipping, refs_of
from synk_core._master.store import DataStore
from synk_core._plan.rows import split_rows
from synk_core._rank.mirror import Mirror
from synk_core._wire.arrays import ArrayCache
from synk_core._wire.messages import PLAIN, Call, Collective, Extras, Rows, ScatteredInput, Step
from synk_core.exceptions import SharedMemoryFull

PROGRAMS = 120 if os.environ.get("SYNK_TESTS") == "all" else 24


class Wires:
    """A communicator of all ranks: messages to leaders wait in queues."""

    def __init__(self, queues):
        self.queues = queues
        self.nbytes = 0

    def send(self, array, dest):
        self.nbytes += array.nbytes
        self.queues[dest].append(np.array(array))

    def recv_for(self, rank):
        def recv(_source, out=None):
            array = self.queues[rank].popleft()
            if out is None:
                return array
            assert out.shape == array.shape
            out[...] = array
            return out

        return recv

    def broadcast_for(self, rank):
        """To leaders: the master's call comes first."""

        def broadcast(array, _root):
            if rank:
                self.recv_for(rank)(0, array)
                return
            self.nbytes += array.nbytes
            for queue in self.queues.values():
                queue.append(np.array(array))

        return broadcast


class Hosts:
    """A master with ranks on several hosts, as far as arrays are concerned."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.store, self.acts = DataStore(), ActTable()
        self.arrays = ArrayCache()
        leaders = {node: nodes.index(node) for node in set(nodes) - {0}}
        self.wires = Wires({rank: deque() for rank in leaders.values()})
        self.master = self._mirror(0, self.arrays)
        self.caches = {node: ArrayCache() for node in leaders}
        self.leaders = {node: self._mirror(leaders[node], self.caches[node]) for node in leaders}
        # As prepared calls have them: arrays by node, act and key, from the act's arrival on.
        self.prepared = {}
        self.number = 0
        self.shipping = Shipping(nodes, self.store, self.arrays, self.acts, self.master)

    def _mirror(self, rank, arrays):
        mirror = Mirror(rank, 0, self.nodes, f"host{self.nodes[rank]}", arrays)
        (near,) = synk_comm.local_group(1)
        leaders = SimpleNamespace(broadcast=self.wires.broadcast_for(rank), close=lambda: None)
        groups = iter((near, leaders))
        wires = SimpleNamespace(
            send=self.wires.send,
            recv=self.wires.recv_for(rank),
            barrier=lambda: None,
            split=lambda _node: next(groups),
            abort=lambda _reason: None,
        )
        mirror.join(wires)
        return mirror

    def order(self, act, origin=0, fails=None, undone=False):
        """Bring what an act needs; with `fails` only to so many hosts. Return bytes sent."""
        before = self.wires.nbytes
        released = self.store.released_keys()
        self.acts.forget_arrays(released)
        self.store.forget(released)
        key = pickle.dumps(act)
        prepared = self.acts.find(key) or self.acts.enter(Prepared(act), key)
        self.number = prepared.number
        steps = [Step(self.number, origin)]
        extras = self.shipping.extend(self.acts.extras(), steps)
        if extras is not None:
            travelled: Extras = pickle.loads(pickle.dumps(extras))
            self.master.take_in(extras)
            for node, leader in list(self.leaders.items())[:fails]:
                self.caches[node].forget(travelled.forget_arrays)
                leader.forget(travelled.forget_arrays)
                leader.take_in(travelled)
                for number, new in travelled.acts.items():
                    arrays = {ref.key: self.caches[node].get(ref) for ref in refs_of(new)}
                    self.prepared[node, number] = arrays
        for queue in self.wires.queues.values():
            assert fails is not None or not queue
            queue.clear()
        if fails is not None:
            self.shipping.failed()
            self.acts.failed(extras)
        else:
            self.shipping.sent()
            if extras is not None:
                self.acts.sent(extras)
        if undone:  # all have performed it, and the master takes it back
            self.shipping.failed()
        self.acts.end([prepared])
        return self.wires.nbytes - before

    def seen(self, node, ref):
        """What a rank of a host reads in the act that was performed last."""
        return self.prepared[node, self.number][ref.key]

    def close(self):
        self.shipping.close()
        for mirror in (self.master, *self.leaders.values()):
            mirror.close()
        self.store.close()


@pytest.fixture
def hosts():
    made = Hosts((0, 0, 1, 1))
    yield made
    made.close()


def call_of(hosts, data, selection, whole=()):
    """Return a call on rows of data (a slice of ints, or an index), and its origin."""
    size = len(hosts.nodes)
    index, origin, step = None, 0, 1
    if isinstance(selection, slice):
        start, stop, step = selection.indices(len(data))
        rows = range(start, stop, step)
        origin = min(rows) if rows else 0
        count = len(rows)
    else:
        count = len(selection)
        room, index = hosts.store.room(("index",), np.dtype(np.int64), (count,), "rows")
        room[...] = selection
    rows = Rows(tuple(split_rows(count, size)), step, index)
    scattered = (ScatteredInput(hosts.store.ref(data)),)
    broadcast = tuple(hosts.store.ref(one) for one in whole)
    return Call(1, PLAIN, rows, scattered, broadcast, None, 1, ()), origin


def check(hosts, data, selection, call, whole=()):
    """Compare what each rank of another host would read with the master's array."""
    wanted = np.array(data.array[selection])
    for rank, node in enumerate(hosts.nodes):
        if node == 0:
            continue
        start, stop = call.rows.bounds[rank]
        copy = hosts.seen(node, call.scattered[0].array)
        got = copy[selection][start:stop]
        np.testing.assert_array_equal(got, wanted[start:stop])
        if call.rows.index is not None and start < stop:
            rows = hosts.seen(node, call.rows.index)[start:stop]
            np.testing.assert_array_equal(rows, selection[start:stop])
        for one, ref in zip(whole, call.broadcast):
            np.testing.assert_array_equal(hosts.seen(node, ref), one.array)


def perform(hosts, data, selection, whole=(), fails=None, undone=False):
    call, origin = call_of(hosts, data, selection, whole)
    sent = hosts.order(call, origin, fails, undone)
    if fails is None:
        check(hosts, data, selection, call, whole)
    return sent


def big(hosts, rows=64):
    """Return a `Data` whose single rows are too large to travel within an order."""
    return hosts.store.make(np.arange(rows * 1024.0).reshape(rows, 1024))


ROW = 1024 * 8


def test_a_row_travels_once(hosts):
    data = big(hosts)
    index = np.array([3, 9, 1, 60, 61, 2, 7, 8])
    assert perform(hosts, data, index) == 4 * ROW
    assert perform(hosts, data, index) == 0
    assert perform(hosts, data, index[::-1].copy()) == 4 * ROW  # the first four, new to that host
    assert perform(hosts, data, index) == 0
    assert perform(hosts, data, slice(None)) == (32 - 2) * ROW  # all but 60 and 61 of rows 32 to 63


def test_written_rows_alone_travel_again(hosts):
    for key, rows in (
        *((40, 1), (-1, 1), (slice(40, 44), 4), ([33, 40], 2), (np.arange(64) > 60, 3), (3, 0)),
        *(((slice(50, 52), 0), 2), (..., 32), (None, 32), (np.ones((64, 1024), bool), 32)),
    ):
        data = big(hosts)
        perform(hosts, data, slice(None))
        data[key] = -1.0
        assert perform(hosts, data, slice(None)) == rows * ROW, key
        assert perform(hosts, data, slice(None)) == 0


def test_arrays_of_calls_travel_with_each(hosts):
    rows = Rows(tuple(split_rows(8, 4)))
    for value in (1.0, 2.0):
        room, ref = hosts.store.room((1, "x"), np.dtype(float), (8, 1024), "x")
        room[...] = value
        call = Call(1, PLAIN, rows, (ScatteredInput(ref, selected=True),), (), None, 1, ())
        assert hosts.order(call) == 4 * ROW
        assert np.all(hosts.seen(1, ref)[4:] == value)
    data = hosts.store.make(np.arange(8.0), minibatch=True)
    item = ScatteredInput(hosts.store.ref(data), minibatch=True)
    hosts.order(Call(1, PLAIN, rows, (item,), (), None, 1, ()), origin=100)
    np.testing.assert_array_equal(hosts.seen(1, item.array)[4:], data.array[4:])


def test_collectives_send_the_rows_of_each_rank(hosts):
    data = big(hosts, 8)
    ref = hosts.store.ref(data)
    rows = Rows(tuple(split_rows(8, 4)))
    assert hosts.order(Collective("scatter", (1,), {"values": [ref], "rows": [rows]})) == 4 * ROW
    np.testing.assert_array_equal(hosts.seen(1, ref)[4:], data.array[4:])
    assert (
        hosts.order(Collective("set_value", (1,), {"values": [ref], "rank": 0, "rows": None})) == 0
    )
    assert hosts.order(Collective("broadcast", (1,), {"values": [ref]})) == 4 * ROW
    np.testing.assert_array_equal(hosts.seen(1, ref), data.array)


def test_an_array_for_every_host_is_sent_once():
    hosts = Hosts((0, 1, 2, 3))
    data = big(hosts, 8)
    whole = Call(1, PLAIN, None, (), (hosts.store.ref(data),), None, 1, ())
    for key, rows in (([], 8), ([3, 4, 7], 3)):
        data[key] = 1.0
        assert hosts.order(whole) == rows * ROW
        for node in (1, 2, 3):
            np.testing.assert_array_equal(hosts.seen(node, whole.broadcast[0]), data.array)
    hosts.close()


def test_a_host_without_room_says_so(hosts, monkeypatch):
    def full(*_args, **_more):
        raise SharedMemoryFull(28, "no room here")

    monkeypatch.setattr("synk_core._rank.mirror.new_array", full)
    data = big(hosts)
    with pytest.raises(SharedMemoryFull, match="no room here"):
        perform(hosts, data, slice(None))


class Program:
    """One random program: what it does to its arrays, and the orders in between."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        layouts = ((0, 1), (0, 0, 1), (0, 1, 0, 1), (0, 1, 2, 2, 0), (0, 1, 1, 2))
        self.hosts = Hosts(layouts[self.rng.integers(len(layouts))])
        self.width = int(self.rng.choice([1, 3, 700]))
        self.data = [self._new() for _ in range(2)]
        self.views: list[Any] = []

    def _new(self):
        rows = int(self.rng.integers(0, 30))
        return self.hosts.store.make(self.rng.normal(size=(rows, self.width)))

    def _key(self, length):
        rng = self.rng
        kinds = [
            lambda: int(rng.integers(-length, length)),
            lambda: slice(*sorted(rng.integers(0, length + 1, 2).tolist())),
            lambda: slice(None, None, -2),
            lambda: rng.integers(-length, length, 3),
            lambda: rng.integers(0, length, 2).tolist(),
            lambda: rng.random(length) < 0.3,
            lambda: (slice(1, None), 0),
            lambda: ...,
            lambda: (int(rng.integers(0, length)), slice(None)),
        ]
        return kinds[rng.integers(len(kinds))]()

    def step(self):
        rng, hosts = self.rng, self.hosts
        i = int(rng.integers(len(self.data)))
        data = self.data[i]
        kinds = "write order order length view touch shape value seal fail new"
        kind = rng.choice(kinds.split())
        if kind == "write" and len(data):
            data[self._key(len(data))] = rng.normal()
        elif kind == "length":
            # Growth may move the array, and old views then show other memory.
            data.set_length(int(rng.integers(0, 40)), oversize=int(rng.integers(1, 3)))
        elif kind == "view":
            view = data.data if rng.random() < 0.5 else data[1:]
            self.views.append((data, view))
        elif kind == "shape" and len(data):
            length, width = len(data), data.shape[1]
            data.set_shape((length * width, 1))
            data[self._key(length * width)] = rng.normal()
            data.set_shape((length, width))
        elif kind == "value":
            data.set_value(rng.normal(size=(int(rng.integers(0, 30)), self.width)))
        elif kind == "touch":
            for _, view in self.views:
                view[...] = rng.normal()
        elif kind == "seal":
            self.views = [pair for pair in self.views if pair[0] is not data]
            data.seal()
        elif kind == "new":
            self.views = [pair for pair in self.views if pair[0] is not data]
            self.data[i] = self._new()
        elif kind in ("order", "fail"):
            fails = None if kind == "order" else int(rng.integers(0, 2))
            whole = tuple(self.data[1 - i : 2 - i])
            undone = fails is None and rng.random() < 0.2
            perform(hosts, data, self._selection(len(data)), whole, fails, undone)

    def _selection(self, length):
        rng = self.rng
        if rng.random() < 0.5 or not length:
            return slice(None, None, int(rng.choice([1, 1, 2, -1, -3])))
        return rng.integers(0, length, int(rng.integers(0, 12)))


def test_no_program_makes_another_host_compute_with_old_values():
    for seed in range(PROGRAMS):
        program = Program(seed)
        try:
            for _ in range(40):
                program.step()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            program.hosts.close()
