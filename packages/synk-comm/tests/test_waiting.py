"""Waiting in shared memory, with a clock, a core and a futex of the test's."""

import os
from types import SimpleNamespace

import pytest

from synk_comm._backends.shm import waiting
from synk_comm._backends.shm.block import WAKER, Block, create

WORD = 0


class Machine:
    """A machine on which yields take `yield_s` seconds, and sleeps are over at once."""

    def __init__(self) -> None:
        self.now, self.yield_s, self.core = 0.0, 1e-6, 1
        self.yields, self.sleeps, self.affinities = 0, 0, []

    def sched_yield(self) -> None:
        self.yields, self.now = self.yields + 1, self.now + self.yield_s

    def sleep(self, *_: object) -> None:
        self.sleeps += 1


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: machine.now))
    monkeypatch.setattr(waiting, "available_cores", lambda: 2)
    monkeypatch.setattr(waiting, "current_core", lambda: machine.core)
    monkeypatch.setattr(os, "sched_yield", machine.sched_yield)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: machine.affinities.append(cores))
    return machine


@pytest.fixture
def waiter(machine):
    group_id = b"x" * 16
    fd = create(2, group_id)
    block = Block(fd, 2, group_id)
    os.close(fd)
    waiter = waiting.Waiter(block, 0)
    waiter._futex = SimpleNamespace(wait=machine.sleep, wake=lambda _address: None)
    yield waiter
    block.close()


def wait(waiter, machine, yields=10**9):
    """Wait for a word until so many yields, or one sleep; return the yields and sleeps."""
    before = machine.yields, machine.sleeps

    def here(_word):
        return machine.yields - before[0] >= yields or machine.sleeps > before[1]

    waiter.until(WORD, here, lambda _began: None, machine.now + 60)
    return machine.yields - before[0], machine.sleeps - before[1]


def test_a_rank_whose_yield_gave_the_core_to_a_program_sleeps_in_the_next_waits(waiter, machine):
    machine.yield_s = 0.004
    for sleeps in (64, 128, 256):  # each try that finds the program there makes them more
        assert wait(waiter, machine) == (1, 1)
        for _ in range(sleeps):
            assert wait(waiter, machine) == (0, 1)
    machine.yield_s = 1e-6  # the program has ended
    assert wait(waiter, machine, yields=100) == (100, 0)
    machine.yield_s = 0.004
    assert wait(waiter, machine) == (1, 1)
    for _ in range(64):
        assert wait(waiter, machine) == (0, 1)
    assert wait(waiter, machine) == (1, 1)


def test_yields_alone_end_in_sleep(waiter, machine):
    yields, sleeps = wait(waiter, machine)
    assert sleeps == 1
    assert 100 <= yields <= 10_000


def test_ranks_that_share_their_cores_go_on_to_yield(waiter, machine):
    waiter.give_way()
    machine.yield_s = 0.004
    assert wait(waiter, machine, yields=10) == (10, 0)
    assert wait(waiter, machine, yields=10) == (10, 0)


@pytest.mark.parametrize("waker, moves", [(1, [{0}, {0, 1}]), (0, [])])
def test_a_woken_rank_leaves_its_wakers_core(waiter, machine, waker, moves):
    machine.core = waker
    waiter.wake(WORD)
    machine.core = 1
    wait(waiter, machine)
    assert machine.affinities == moves
    assert waiter._block.words[WAKER] == waker + 1
