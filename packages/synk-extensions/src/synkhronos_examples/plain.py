"""The steps of `train_digits.py` without Synkhronos, in their own processes, for comparison.

A process with workers limits its BLAS to its share of the cores, so a plain function would be
slower there. Here one process has BLAS's default number of threads, or that of the environment, and
one has a single thread; the faster one is the reference.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from threadpoolctl import threadpool_info

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class PlainProcess:
    """A process that trains the same network in plain Theano or PyTensor, on request.

    Args:
        model: A name of `train_digits.MODELS`.
        batch_size: Rows per step.
        settings: Changes to the environment.

    Attributes:
        name: Its number of threads, as text.
    """

    def __init__(self, model: str, batch_size: int, settings: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, model, str(batch_size)],
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threads = self._line()
        self.name = f"{threads} thread{'' if threads == '1' else 's'}"

    def step(self) -> float:
        """Take a step in the process; return its seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the plain process ended with status {self._process.wait()}")
        return line


def peers(model: str, batch_size: int) -> list[PlainProcess]:
    """A plain process as it comes, and one with a single thread if that is something else."""
    default = PlainProcess(model, batch_size, {})
    if default.name == "1 thread":
        return [default]
    return [default, PlainProcess(model, batch_size, ONE_THREAD)]


def nesterov_momentum(loss: Any, params: list[Any], rate: float, momentum: float) -> list[Any]:
    """The updates of Nesterov's momentum."""
    from synkhronos.engine import T, engine

    updates = []
    for param, grad in zip(params, T.grad(loss, params)):
        velocity = engine.shared(0 * param.get_value())
        moved = momentum * velocity - rate * grad
        updates += [(velocity, moved), (param, param + momentum * moved - rate * grad)]
    return updates


def main(model: str, batch_size: int) -> None:
    """Say how many threads there are, then take a step for each line that is read, and time it."""
    import numpy as np
    from synkhronos.engine import T, engine
    from train_digits import MODELS, cross_entropy, load_data

    x, y = T.tensor4("x"), T.ivector("y")
    scores, params = MODELS[model][1](x)
    loss = cross_entropy(scores, y)
    train = engine.function([x, y], loss, updates=nesterov_momentum(loss, params, 0.05, 0.9))
    digits = load_data()
    indexes = np.arange(min(batch_size, len(digits.x_train)))
    for _ in range(3):
        train(digits.x_train[indexes], digits.y_train[indexes])
    print(max(pool["num_threads"] for pool in threadpool_info()), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        train(digits.x_train[indexes], digits.y_train[indexes])
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
