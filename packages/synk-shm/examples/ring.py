"""A producer hands frames to a consumer through a ring of slots in shared memory.

    python ring.py
    python ring.py --frames 1000 --slots 8 --start-method spawn
    python ring.py --die-at 30      # the producer is killed in the middle of frame 30

No frame is copied: the producer fills a slot in place, and the consumer reads it there. All of
the ring is one shared array, a header and the slots, which is sent like any other argument.

Two semaphores count the slots that are free and those that are filled. They also order memory: the
writes of one process before `release` are visible to the other after `acquire`, on every processor.
A loop that waits for an index in shared memory to change guarantees no such order, so no index is
read before an `acquire`.

Every wait has a limit. A killed process releases no semaphore, so each process checks its peer
while it waits. A lock would be worse here: one of multiprocessing that was held by a killed process
stays locked.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import synk_shm as shm

FRAME = (480, 640)
PATIENCE_S = 30.0


class PeerGone(RuntimeError):
    """The process at the other end has died."""


class Ring:
    """A queue of frames from one producer to one consumer, at most `slots` at a time."""

    def __init__(self, context: Any, slots: int, shape: tuple[int, ...], dtype: Any) -> None:
        # 64 bytes of header, so that the frames begin on a cache line of their own.
        header = np.dtype({"names": ["sent", "read"], "formats": ["i8", "i8"], "itemsize": 64})
        self.memory = shm.zeros((), [("header", header), ("frames", dtype, (slots, *shape))])
        self.free = context.Semaphore(slots)
        self.filled = context.Semaphore(0)

    @contextlib.contextmanager
    def slot(self, peer: Any) -> Iterator[np.ndarray]:
        """Yield the next free slot to the producer. It is sent if the block succeeds."""
        header, frames = self.memory["header"], self.memory["frames"]
        wait(self.free, peer)
        sent = False
        try:
            yield frames[header["sent"] % len(frames)]
            header["sent"] += 1  # after the frame, before the release
            sent = True
        finally:
            (self.filled if sent else self.free).release()

    def end(self) -> None:
        """End the frames, as the producer."""
        self.filled.release()  # without a frame, which the consumer checks

    def frames(self, peer: Any) -> Iterator[np.ndarray]:
        """Yield each frame to the consumer, in its slot. The next iteration overwrites it."""
        header, frames = self.memory["header"], self.memory["frames"]
        while True:
            wait(self.filled, peer)
            if header["read"] == header["sent"]:
                return
            yield frames[header["read"] % len(frames)]
            header["read"] += 1
            self.free.release()


def wait(semaphore: Any, peer: Any) -> None:
    """Acquire it. Raise PeerGone if the peer is dead, TimeoutError after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        alive = peer.is_alive()  # first: a release before its death still counts
        if semaphore.acquire(timeout=0.1):
            return
        if not alive:
            raise PeerGone("the process at the other end has died")
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing from the other end for {PATIENCE_S} s")


def produce(ring: Ring, n_frames: int, die_at: int) -> None:
    """Produce frames; the consumer is the process that started this one."""
    consumer = mp.parent_process()
    with contextlib.suppress(PeerGone):  # there is no process left to produce for, or to report to
        for number in range(n_frames):
            with ring.slot(consumer) as frame:
                frame[: len(frame) // 2] = number % 256
                if number == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                frame[len(frame) // 2 :] = number % 256
        ring.end()


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream frames from one process to another.")
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--die-at", type=int, default=-1, help="kill the producer at this frame")
    parser.add_argument("--start-method", choices=mp.get_all_start_methods())
    options = parser.parse_args()

    context = mp.get_context(options.start_method)
    ring = Ring(context, options.slots, FRAME, "u1")
    producer = context.Process(target=produce, args=(ring, options.frames, options.die_at))
    producer.start()
    received = 0
    end = "the end"
    try:
        for frame in ring.frames(producer):
            assert (frame == received % 256).all()  # whole, and in order
            received += 1
    except PeerGone as gone:
        end = str(gone)
    producer.join()

    assert received == (options.die_at if 0 <= options.die_at < options.frames else options.frames)
    print(f"{received} whole frames through {options.slots} slots, then: {end}")


if __name__ == "__main__":
    main()
