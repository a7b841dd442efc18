"""Workers predict with one model that they share: none can write to it, and none copies it.

    python readonly_model.py
    python readonly_model.py --units 4000 --processes 8 --start-method spawn

The weights go to the workers as handles, and each worker maps them without the right to write.
That is more than NumPy's flag: it cannot be set back, and compiled code that ignores the flag
crashes instead of changing the model of all others.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
from pathlib import Path

import numpy as np

import synk_shm as shm

ROWS_PER_TASK = 50

# Filled in each worker when it starts: the weights by name, and its memory before it had them.
model: dict[str, np.ndarray] = {}
own_before: list[int] = []


def make_weights(units: int) -> dict[str, np.ndarray]:
    """Weights in ordinary memory. A real program would read them from a file."""
    random = np.random.default_rng(1)
    shapes = {"w1": (100, units), "b1": (units,), "w2": (units, units), "w3": (units, 10)}
    return {name: random.normal(0, 0.1, shape) for name, shape in shapes.items()}


def predict(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The class of each row of x, by a network of three layers."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    hidden = np.maximum(hidden @ weights["w2"], 0)
    return np.argmax(hidden @ weights["w3"], axis=1)


def start(handles: dict[str, shm.Handle]) -> None:
    """In a worker, once: map the weights."""
    own_before.append(memory("self", "status", "RssAnon"))
    model.update({name: handle.attach(readonly=True) for name, handle in handles.items()})


def work(x: np.ndarray, classes: np.ndarray) -> int:
    """In a worker: write the classes of these rows. Return the bytes of its own memory used."""
    classes[:] = predict(model, x)
    return memory("self", "status", "RssAnon") - own_before[0]


def vandalise(name: str) -> str:
    """In a worker: try to write to a weight, and return the outcome."""
    try:
        model[name].flags.writeable = True
        model[name][...] = 0
    except ValueError as error:
        return str(error)
    return "done"


def memory(pid: object, file: str, field: str) -> int:
    """Bytes of one kind of memory that a process has, from /proc; 0 where that does not exist."""
    path = Path(f"/proc/{pid}/{file}")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Let several processes predict with one model.")
    parser.add_argument("--units", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--start-method", choices=mp.get_all_start_methods())
    options = parser.parse_args()

    weights = make_weights(options.units)
    shared = {name: shm.share(values) for name, values in weights.items()}
    handles = {name: shm.handle(values) for name, values in shared.items()}
    x = shm.share(np.random.default_rng(2).normal(size=(options.rows, 100)))
    classes = shm.zeros(options.rows, "i8")

    starts = range(0, options.rows, ROWS_PER_TASK)
    parts = [slice(first, first + ROWS_PER_TASK) for first in starts]
    context = mp.get_context(options.start_method)
    with context.Pool(options.processes, start, (handles,)) as pool:
        taken = pool.starmap(work, [(x[part], classes[part]) for part in parts])
        answer = pool.apply(vandalise, ("w2",))
        # The kernel counts a page that n processes have mapped as an n-th for each of them.
        pids = ["self", *(worker.pid for worker in mp.active_children())]
        in_use = sum(memory(pid, "smaps_rollup", "Pss_Shmem") for pid in pids)
        pool.close()  # and join: leaving the block alone would kill the workers
        pool.join()

    assert (classes == predict(weights, x)).all()
    assert all((shared[name] == weights[name]).all() for name in weights)
    size = sum(values.nbytes for values in weights.values())
    print(f"{options.processes} processes predicted with one model of {size / 1e6:.0f} MB")
    print(f"one tried to write to it: {answer}")
    if in_use:
        print(f"shared memory of all processes together: {in_use / size:.1f} times the model")
        print(f"memory of its own that each took besides: {max(taken) / size:.0%} of the model")


if __name__ == "__main__":
    main()
