"""Heat in a rod: every rank has a piece of it, and needs one point of each neighbour per step.

    python -m synk_comm.run -n 4 halo.py
    python halo.py

The pieces are uneven. Every rank computes the very numbers that one process alone would, so the
result is the same to the last bit, and so is the step at which all stop.
"""

from __future__ import annotations

import numpy as np
import synk_comm

POINTS, RATE, ENOUGH, MOST_STEPS, CHECK_EVERY = 61, 0.4, 2e-5, 10_000, 20
RIGHTWARDS, LEFTWARDS = 0, 1  # tags


def exchange(comm: synk_comm.Communicator, rod: np.ndarray) -> None:
    """Fill the points beyond both ends of this rank's piece from its neighbours."""
    left, right = comm.rank - 1, comm.rank + 1
    # So little fits the channel: send returns before the other receives.
    if left >= 0:
        comm.send(rod[1:2], left, tag=LEFTWARDS)
    if right < comm.size:
        comm.send(rod[-2:-1], right, tag=RIGHTWARDS)
        comm.recv(right, tag=LEFTWARDS, out=rod[-1:])
    if left >= 0:
        comm.recv(left, tag=RIGHTWARDS, out=rod[:1])


def relax(comm: synk_comm.Communicator, start: np.ndarray) -> tuple[np.ndarray, int]:
    """Let the heat spread until nothing changes any more; return this rank's piece, and steps."""
    inner = np.array_split(np.arange(1, len(start) - 1), comm.size)[comm.rank]
    rod = start[inner[0] - 1 : inner[-1] + 2].copy()
    for step in range(1, MOST_STEPS + 1):
        exchange(comm, rod)
        change = RATE * (rod[:-2] - 2 * rod[1:-1] + rod[2:])
        rod[1:-1] += change
        if step % CHECK_EVERY == 0 and comm.all_reduce(np.abs(change).max(), "max") < ENOUGH:
            break
    return rod[1:-1], step


def main() -> None:
    start = np.zeros(POINTS)
    start[0], start[-1] = 1.0, -1.0  # the ends are held hot and cold
    with synk_comm.connect() as comm:
        piece, steps = relax(comm, start)
        pieces = comm.gather(piece)
    if comm.rank == 0:
        (alone,) = synk_comm.local_group(1)
        serial, serial_steps = relax(alone, start)
        rod = np.concatenate(pieces)
        assert steps == serial_steps < MOST_STEPS
        assert rod.tobytes() == serial.tobytes()
        assert abs(rod - np.linspace(1, -1, POINTS)[1:-1]).max() < 0.02, "a straight line, nearly"
        print(f"after {steps} steps nothing changes: {rod[0]:.2f} ... {rod[-1]:.2f}")


if __name__ == "__main__":
    main()
