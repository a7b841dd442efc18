"""The memory of graphs: with a stand-in for libgpuarray's allocator, which has the same lists."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
import types

import numpy as np
import pytest

from synk_comm import cuda
from synk_theano._gpu.graphs import CudaGraphs

STREAM, PLACE = 0xABC, 18
Block = ctypes.c_size_t * 8
"""As a `_gpudata` of libgpuarray: the first word is the address, the last that of the next one."""


class Allocator:
    """The list of free blocks of a context, in the order of their addresses."""

    def __init__(self):
        self.words = (ctypes.c_size_t * 24)()
        self.ptr = ctypes.addressof(self.words)
        self.words[PLACE] = STREAM
        self.words[PLACE + 1] = STREAM
        self.words[PLACE + 4] = 2**40
        self.blocks = {}
        self._addresses = itertools.count(1000, 100)

    def free(self):
        """The addresses in the list that is in place, checked for their order."""
        found, at = [], self.words[PLACE + 2]
        while at:
            block = Block.from_address(at)
            found.append(block[0])
            at = block[7]
        assert found == sorted(set(found))
        return found

    def take(self):
        first = self.words[PLACE + 2]
        if first:
            block = Block.from_address(first)
            self.words[PLACE + 2] = block[7]
            return block[0]
        block = Block(next(self._addresses))
        self.blocks[block[0]] = block
        return block[0]

    def give(self, address):
        """Put a block into the list that is in place."""
        mine = self.blocks[address]
        at, before = self.words[PLACE + 2], None
        while at and Block.from_address(at)[0] < address:
            before, at = Block.from_address(at), Block.from_address(at)[7]
        mine[7] = at
        if before is None:
            self.words[PLACE + 2] = ctypes.addressof(mine)
        else:
            before[7] = ctypes.addressof(mine)

    def empty(self, shape, dtype, context):
        assert context is self
        return Array(self)


class Array:
    def __init__(self, allocator):
        self.allocator, self.gpudata = allocator, allocator.take()

    def __del__(self):
        self.allocator.give(self.gpudata)


@pytest.fixture
def allocator(monkeypatch):
    made = Allocator()
    monkeypatch.setitem(sys.modules, "pygpu", types.SimpleNamespace(empty=made.empty))
    return made


def graphs_of(allocator):
    return CudaGraphs(None, 0, STREAM, allocator, lambda: None, lambda _values: None)


def test_memory_of_graphs_is_not_handed_out_to_others(allocator):
    others = [allocator.take() for _ in range(3)]
    graphs = graphs_of(allocator)
    with graphs.own_memory():
        mine = [allocator.take() for _ in range(3)]
        for address in mine:
            allocator.give(address)
    for address in others:
        allocator.give(address)
    assert allocator.free() == sorted(others)
    assert not {allocator.take() for _ in range(6)}.intersection(mine)
    with graphs.own_memory():
        assert {allocator.take() for _ in range(3)} == set(mine)


def test_memory_freed_in_a_recording_belongs_to_graphs(allocator):
    other = allocator.take()
    graphs = graphs_of(allocator)
    with graphs.own_memory():
        allocator.give(other)
    assert allocator.free() == []
    with pytest.raises(KeyError), graphs.own_memory():
        assert other in allocator.free()
        raise KeyError
    assert allocator.free() == []


def test_all_memory_is_given_back_in_order_when_the_last_graph_is_gone(allocator):
    random = np.random.RandomState(0)
    taken = [allocator.take() for _ in range(20)]
    graphs = graphs_of(allocator)

    class Function:
        is_recorded = True

        def close(self):
            self.is_recorded = False

    first, second = Function(), Function()
    graphs.functions.update((first, second))
    for address in random.permutation(taken).tolist():
        if random.rand() < 0.5:
            with graphs.own_memory():
                allocator.give(address)
        else:
            allocator.give(address)
    before = allocator.free()
    assert 0 < len(before) < len(taken)
    first.close()
    graphs.leave(first)
    assert allocator.free() == before
    second.close()
    graphs.leave(second)
    # And the block that the allocator was tried with.
    assert set(allocator.free()) == set(allocator.blocks)
    with graphs.own_memory():
        assert allocator.free() == []
        allocator.give(allocator.take())
    graphs.reset()
    assert set(allocator.free()) == set(allocator.blocks)


def test_a_device_that_has_failed_keeps_its_graphs(allocator):
    @contextlib.contextmanager
    def entered(_device):
        yield

    def drop_graph(graph):
        raise cuda.CudaError(f"cuGraphExecDestroy failed: graph {graph}")

    driver = types.SimpleNamespace(entered=entered, drop_graph=drop_graph)
    CudaGraphs(driver, 0, STREAM, allocator, lambda: None, lambda _values: None).forget(5)


def test_an_allocator_that_is_not_known(allocator, monkeypatch):
    for word, value in ((PLACE + 1, STREAM + 1), (PLACE + 4, 0), (PLACE, 0)):
        usual, allocator.words[word] = allocator.words[word], value
        with pytest.raises(cuda.CudaError, match="not known"):
            graphs_of(allocator)
        allocator.words[word] = usual
    monkeypatch.setattr(allocator, "give", lambda address: None)  # to another list
    with pytest.raises(cuda.CudaError, match="not known"):
        graphs_of(allocator)
    assert allocator.free() == []
