"""What is locked and copied: with a stand-in for CUDA's driver."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest

from synk_comm import cuda
from synk_theano._gpu import copies

STREAM = 11


class FakeDriver:
    """Enough of CUDA's driver for one device; copies happen when they are told to."""

    def __init__(self):
        self.locked, self.copies, self.done, self.refuse = {}, [], True, False

    def entered(self, device):
        assert device == 3
        return contextlib.nullcontext()

    def lock_pages(self, address, nbytes):
        if self.refuse:
            raise cuda.CudaError("already locked")
        assert address not in self.locked
        self.locked[address] = nbytes

    def unlock_pages(self, address):
        del self.locked[address]

    def event(self):
        return 17

    def record(self, event, stream):
        assert (event, stream) == (17, STREAM)
        self.done = False

    def has_happened(self, event):
        was, self.done = self.done, True
        return was

    def upload_on(self, stream, pointer, address, nbytes):
        assert stream == STREAM
        self.copies.append((pointer, address, nbytes))


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture
def pages(driver):
    return copies.LockedPages(driver, 3, STREAM)


def test_pages_are_locked_once_and_for_as_long_as_the_array_lives(driver, pages):
    whole = np.zeros(100_000)
    address = whole.__array_interface__["data"][0]
    for part in (whole[10:20], whole, whole[:500]):
        pages.lock(part)
    assert driver.locked == {address: whole.nbytes}
    assert pages.copy(whole[5:9], 1234)
    assert driver.copies == [(1234, address + 40, 32)]
    assert not pages.copy(np.zeros(10), 1234)
    pages.settle()
    assert driver.done
    del whole, part
    gc.collect()
    assert driver.locked == {}


def test_what_cannot_be_locked_is_copied_the_other_way(driver, pages, monkeypatch):
    """An array in too large a memory is not locked; a refusal is not for ever."""
    monkeypatch.setattr(copies, "LARGEST_LOCK", 100_000)
    large, small = np.zeros(100_000), np.zeros(12_000)
    pages.lock(large[:100])
    driver.refuse = True
    pages.lock(small)
    assert not pages.copy(small, 1)
    assert (driver.locked, driver.copies) == ({}, [])
    driver.refuse = False
    other = np.zeros(10_000)
    pages.lock(other)
    del other
    gc.collect()
    pages.lock(small)
    assert list(driver.locked.values()) == [small.nbytes]
