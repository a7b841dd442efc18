"""Damaged and forged segments and handles are refused before they do harm."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

import pytest

import synk_shm as shm


def path_of(name: str) -> Path:
    return Path(f"/dev/shm/synk.u.{name}")


@pytest.fixture
def write():
    """Yield what makes a file in shared memory anew, with this content, and returns its name."""
    name = f"strange-{secrets.token_hex(5)}"

    def make(content: bytes) -> str:
        path_of(name).unlink(missing_ok=True)
        path_of(name).write_bytes(content)
        return name

    yield make
    path_of(name).unlink(missing_ok=True)


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096)])
@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_segments_that_never_become_ready(write, content, timeout_s):
    name = write(content)
    with pytest.raises(TimeoutError) as caught:
        shm.attach(name, timeout_s=timeout_s)
    assert isinstance(caught.value, shm.ShmError)
    assert path_of(name).stat().st_size == len(content)


def test_attach_waits_for_a_segment_that_is_being_made(write):
    a = shm.ones(3)
    complete = Path("/dev/shm" + shm.segment(a).name).read_bytes()
    name = write(b"")

    def finish() -> None:
        with path_of(name).open("r+b") as file:
            file.truncate(len(complete))
            file.seek(8)  # the mark of a complete header is written last
            file.write(complete[8:])
            file.flush()
            file.seek(0)
            file.write(complete[:8])

    timer = threading.Timer(0.1, finish)
    timer.start()
    try:
        assert shm.attach(name, timeout_s=30).tolist() == [1, 1, 1]
    finally:
        timer.join(30)


def test_forged_dtypes():
    a = shm.zeros(4)
    for text in (
        *("O", "|O", "('O', (2,))", "(1", "((((", "('x', 1)", "__import__('os')", "(" * 5000),
        *("{'names': ['a']}", "{'names': ['a'], 'formats': ['O']}", "{'names': 3, 'formats': 3}"),
        "{'names': ['a'], 'formats': ['f8'], 'offsets': [1180591620717411303424]}",
        *("f8,O", "V0"),
    ):
        address = shm.handle(a)._replace(dtype_text=text)
        with pytest.raises((TypeError, ValueError)):
            _ = address.dtype
        with pytest.raises(shm.ShmFormatError):
            address.attach()


def test_handles_that_leave_the_segment():
    a = shm.zeros((4, 4), capacity=100)
    good = shm.handle(a)
    for changes in (
        {"offset": -8},
        {"offset": 8},
        {"offset": 1 << 40},
        {"offset": 1 << 64},
        {"shape": (5, 4)},
        {"shape": (-1, 4)},
        {"shape": (-1, -16)},
        {"shape": (1 << 40, 1 << 40)},
        {"shape": (1 << 32, 1 << 32)},
        {"strides": (32, -8)},
        {"strides": (1 << 40, 8)},
        {"strides": (32,)},
        {"strides": (1 << 63, 8)},
        {"dtype_text": "O"},
        {"dtype_text": ">c16"},
    ):
        with pytest.raises(shm.ShmFormatError):
            good._replace(**changes).attach()
    for name in ("/etc/passwd", "/proc/self/fd/0", "/proc/1/root", "/dev/shm/x", "a\0b", "", 3):
        with pytest.raises((ValueError, TypeError)):
            good._replace(name=name).attach()
    assert good.attach(readonly=True).shape == (4, 4)
