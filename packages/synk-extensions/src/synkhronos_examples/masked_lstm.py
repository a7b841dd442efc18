"""Train an LSTM on sequences of different lengths, data-parallel, with Theano or PyTensor.

    python examples/masked_lstm.py

Each row is a sequence of pairs: a number, and a mark. Two numbers of a sequence are marked; the
network has to return their sum. Sequences are padded to one length, and a mask says which steps
count: in the others the state stays as it is. Rows stay along axis 0 up to the loop, because
`scan` runs over axis 0. The program ends with an error if a gradient is not that of one process,
or if the network learns nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import Trainer, make_train_function

ROWS, LONGEST, UNITS = 1500, 8, 16
FLOAT = engine.config.floatX


def sequences(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Return pairs (rows, LONGEST, 2), masks (rows, LONGEST), and sums (rows,)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(LONGEST // 2, LONGEST + 1, rows)
    mask = np.arange(LONGEST) < lengths[:, None]
    pairs = np.zeros((rows, LONGEST, 2))
    pairs[..., 0] = rng.uniform(-1, 1, (rows, LONGEST)) * mask
    for row, length in zip(pairs, lengths):
        row[rng.choice(length, 2, replace=False), 1] = 1
    return pairs.astype(FLOAT), mask.astype(FLOAT), pairs.prod(axis=2).sum(axis=1).astype(FLOAT)


def lstm(pairs: Any, mask: Any) -> tuple[Any, list[Any]]:
    """Return the last outputs of an LSTM, with the shape (rows, UNITS), and its parameters."""
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.3, (2 + UNITS, 4 * UNITS))
    bias = np.repeat([1.0, 0.0, 0.0, 0.0], UNITS)  # forget little at first
    params = [engine.shared(weights.astype(FLOAT), "W"), engine.shared(bias.astype(FLOAT), "b")]

    def step(x: Any, m: Any, output: Any, cell: Any, w: Any, b: Any) -> list[Any]:
        gates = T.concatenate([x, output], axis=1).dot(w) + b
        forget, take, show = (
            1 / (1 + T.exp(-gates[:, i * UNITS : (i + 1) * UNITS])) for i in range(3)
        )
        new_cell = forget * cell + take * T.tanh(gates[:, 3 * UNITS :])
        new_output = show * T.tanh(new_cell)
        m = m[:, None]
        return [m * new_output + (1 - m) * output, m * new_cell + (1 - m) * cell]

    nothing = T.zeros((pairs.shape[0], UNITS), FLOAT)
    (outputs, _), _ = engine.scan(
        step,
        sequences=[pairs.dimshuffle(1, 0, 2), mask.T],
        outputs_info=[nothing, nothing],
        non_sequences=params,
        strict=True,
    )
    return outputs[-1], params


def main() -> None:
    synk.fork()
    pairs, mask, target = T.tensor3("pairs"), T.matrix("mask"), T.vector("target")
    inputs = [pairs, mask, target]
    last, params = lstm(pairs, mask)
    out = engine.shared(np.zeros(UNITS, FLOAT), "out")
    loss = T.sqr(T.dot(last, out) - target).mean()

    train = make_train_function(loss, [*params, out], inputs, updates.adam, learning_rate=0.02)
    data, held_out = sequences(ROWS, seed=2), sequences(500, seed=3)

    Trainer(train, data, 100).run(epochs=5)

    report = train.grad_function.verify(*held_out, num_slices=1)
    print(report)
    report.raise_if_wrong()
    error = float(train.grad_function(*held_out))  # the loss, without a step
    synk.close()
    alone = np.var(held_out[2])  # the error of a network that returns the mean
    print(f"mean squared error {error:.3f}, that of the mean {alone:.3f}")
    if error > 0.25 * alone:
        raise SystemExit("the network has not learned to add")


if __name__ == "__main__":
    main()
