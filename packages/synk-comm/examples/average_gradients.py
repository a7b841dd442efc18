"""Linear regression on several processes: every rank has its share of the rows.

    python -m synk_comm.run -n 4 average_gradients.py
    python average_gradients.py

The averages are weighted by rows, so the uneven shares of each batch, and ranks without any row,
change nothing: every step is the serial one.
"""

from __future__ import annotations

import numpy as np
import synk_comm

FEATURES, STEPS, RATE = 5, 60, 0.2
BATCHES = (50, 7, 2)  # 7 rows are uneven on 2, 3 or 4 ranks; of 2 rows some ranks get none


def make_data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, FEATURES))
    y = x @ np.arange(1.0, FEATURES + 1) + 3.0
    return x, y


def gradients(weights: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray) -> list:
    """Return those of the mean squared error over these rows."""
    error = x @ weights + bias - y
    return [2 * x.T @ error / len(y), np.array([2 * error.mean()])]


def train(comm: synk_comm.Communicator, x: np.ndarray, y: np.ndarray) -> list:
    parameters = [np.zeros(FEATURES), np.zeros(1)]
    # Rank 0 decides where to begin; here all agree anyway.
    comm.broadcast(parameters)
    first = 0
    for step in range(STEPS):
        rows = BATCHES[step % len(BATCHES)]
        batch = np.arange(first, first + rows) % len(y)
        first += rows
        mine = np.array_split(batch, comm.size)[comm.rank]
        given = gradients(*parameters, x[mine], y[mine]) if len(mine) else None
        room = [np.empty_like(parameter) for parameter in parameters]
        for parameter, gradient in zip(
            parameters, comm.all_reduce(given, "avg", weight=float(len(mine)), out=room)
        ):
            parameter -= RATE * gradient
    return parameters


def main() -> None:
    x, y = make_data(100)
    with synk_comm.connect() as comm:
        parallel = train(comm, x, y)
        everyone = comm.all_gather(np.concatenate(parallel))
    (alone,) = synk_comm.local_group(1)
    serial = train(alone, x, y)
    for ours, theirs in zip(parallel, serial):
        # Sums of the same numbers in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    for theirs in everyone:
        assert theirs.tobytes() == everyone[0].tobytes(), "all ranks have the same bits"
    if comm.rank == 0:
        print("weights", parallel[0].round(2), "bias", parallel[1].round(2))


if __name__ == "__main__":
    main()
