"""A training loop of one's own: gradients, `all_reduce`, and an update rule that no package has.

    python examples/custom_loop.py

The rule is Lion (Chen and others, 2023): each parameter moves by a constant amount, in the
direction of the sign of an averaged gradient. A sign is not linear, so the gradients are averaged
over the processes before the rule sees them. The loop clips them, adds up those of two batches for
each step, lets the rate rise and fall, and keeps the best parameters. The same loop with plain
functions, in this process alone, has to reach the same parameters; otherwise the program fails.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos.extensions.batches import index_batches

ROWS, UNITS, BATCH, EPOCHS = 600, 24, 75, 12
RATE, DECAY, LONGEST_STEP = 0.02, 0.9, 1.0
LARGEST_DIFFERENCE = 1e-10  # of float64 parameters: sums in another order differ in the last bits


def spirals(rows: int, seed: int) -> tuple[Any, Any]:
    """Return points (rows, 2) on two spirals, and which of the two each is on, 0 or 1."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, rows)
    turn = rng.uniform(0.2, 1, rows)
    angle = 1.2 * np.pi * turn + np.pi * label
    points = turn * np.stack([np.cos(angle), np.sin(angle)])
    return points.T + rng.normal(0, 0.02, (rows, 2)), label.astype("float64")


class Model:
    """A network with one hidden layer, and what the rule keeps for each parameter."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.x, self.y = T.dmatrix("x"), T.dvector("y")
        values = [rng.normal(0, 2, (2, UNITS)), rng.normal(0, 1, UNITS), np.zeros(UNITS)]
        self.params = [engine.shared(value, name) for name, value in zip("Wbv", values)]
        w, b, v = self.params
        score = T.tanh(self.x.dot(w) + b).dot(v)
        self.loss = T.log(1 + T.exp(-(2 * self.y - 1) * score)).mean()
        self.error = T.neq(score > 0, self.y > 0.5).mean(dtype="float64")
        self.grads = [engine.shared(0 * value) for value in values]
        self.averages = [engine.shared(0 * value) for value in values]
        self.rate = engine.shared(0.0, "rate")

    def gradient_updates(self) -> list[Any]:
        """Return the updates that write each gradient of the loss to its variable."""
        return list(zip(self.grads, T.grad(self.loss, self.params)))

    def step_updates(self, total: list[Any]) -> list[Any]:
        """Return Lion's updates, from gradients that are added up in `total`."""
        norm = T.sqrt(sum(T.sqr(g).sum() for g in total))
        scale = T.minimum(1, LONGEST_STEP / T.maximum(norm, 1e-12))
        updates = []
        for param, average, g in zip(self.params, self.averages, total):
            g = g * scale
            direction = T.sgn(DECAY * average + (1 - DECAY) * g)
            updates.append((param, param - self.rate * direction))
            updates.append((average, 0.99 * average + 0.01 * g))
        return updates


def rate_of(step: int, steps: int) -> float:
    """Return a rate that rises for a tenth of the steps, and falls to 0 as a cosine."""
    rise = min(1.0, (step + 1) / (0.1 * steps))
    return RATE * rise * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(model: Model, accumulate: Any, step: Any, validate: Any, set_rate: Any) -> list[Any]:
    """Take all steps, each of two batches; return the parameters of the best epoch."""
    rng = np.random.default_rng(2)
    steps, taken = EPOCHS * ROWS // BATCH // 2, 0
    lowest, best = math.inf, []
    for _ in range(EPOCHS):
        batches = index_batches(ROWS, BATCH, rng)
        for first, second in zip(batches, batches):
            set_rate(rate_of(taken, steps))
            accumulate(first)
            accumulate(second)
            step()
            taken += 1
        error = float(validate())
        if error <= lowest:
            lowest, best = error, [param.get_value() for param in model.params]
    print(f"  {taken} steps, lowest error {lowest:.1%}")
    return best


def in_parallel(data: Any, held_out: Any) -> list[Any]:
    """Train on all processes."""
    model = Model()
    total = [engine.shared(grad.get_value()) for grad in model.grads]
    gradient = synk.function([model.x, model.y], model.loss, updates=model.gradient_updates())
    add = synk.function([], updates=[(t, t + g) for t, g in zip(total, model.grads)])
    step = synk.function([], updates=[*model.step_updates(total), *((t, 0 * t) for t in total)])
    validate = synk.function([model.x, model.y], model.error)
    x_data, y_data = gradient.build_inputs(*data)

    def accumulate(rows: Any) -> None:
        # One order: every process computes, the gradients are averaged, and every process adds.
        synk.step(
            gradient.delayed(x_data, y_data, batch=rows),
            synk.delayed.all_reduce(model.grads, op="avg", weights=gradient),
            add,
        )

    def set_rate(rate: float) -> None:
        synk.broadcast(model.rate, np.float64(rate))  # set_value() would reach this process alone

    return train(model, accumulate, step, lambda: validate(*held_out), set_rate)


def alone(data: Any, held_out: Any) -> list[Any]:
    """Train with plain functions, in this process."""
    model = Model()
    total = [engine.shared(grad.get_value()) for grad in model.grads]
    added = [(t, t + g) for t, (_, g) in zip(total, model.gradient_updates())]
    gradient = engine.function([model.x, model.y], model.loss, updates=added)
    step = engine.function([], updates=[*model.step_updates(total), *((t, 0 * t) for t in total)])
    validate = engine.function([model.x, model.y], model.error)

    def accumulate(rows: Any) -> None:
        gradient(*(array[rows] for array in data))

    return train(model, accumulate, step, lambda: validate(*held_out), model.rate.set_value)


def main() -> None:
    synk.fork()
    data, held_out = spirals(ROWS, seed=3), spirals(300, seed=4)
    print("in parallel")
    reached = in_parallel(data, held_out)
    synk.close()
    print("in one process")
    expected = alone(data, held_out)
    difference = max(np.abs(a - b).max() for a, b in zip(reached, expected))
    print(f"largest difference of a parameter: {difference:.1e}")
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"expected at most {LARGEST_DIFFERENCE:.0e}")


if __name__ == "__main__":
    main()
