"""synk-pytensor on GPUs beside JAX by hand: training steps of a network, in processes of their own.

    python packages/synk-pytensor/benchmarks/run.py                  # all GPUs
    python packages/synk-pytensor/benchmarks/run.py --gpus 1 --only small --seconds 1

By hand: one process, `shard_map` and `pmean`, rows resident on the GPUs. Ours: the same network in
PyTensor, gradients averaged by `all_reduce`, with rows resident, and with rows in shared memory.
Each step of both reads the loss. Times are medians of rounds, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List

import numpy as np

NETWORKS = {
    "small": ([784, 2048, 2048, 10], 1024),
    "large": ([784, 8192, 8192, 8192, 10], 8192),
}
"""Sizes of layers, and rows for each GPU."""

RATE, MOMENTUM, ROUNDS = 1e-3, 0.9, 5


def weights(sizes: List[int]) -> List[np.ndarray]:
    """Return the first weights and biases, layer by layer."""
    random, made = np.random.RandomState(0), []
    for inputs, outputs in zip(sizes, sizes[1:]):
        made.append((random.randn(inputs, outputs) / np.sqrt(inputs)).astype("f4"))
        made.append(np.zeros(outputs, "f4"))
    return made


def data(sizes: List[int], rows: int) -> Any:
    """Return rows, and their labels."""
    random = np.random.RandomState(1)
    return random.randn(rows, sizes[0]).astype("f4"), random.randint(0, sizes[-1], rows, "i4")


def measured(step: Callable[[], Any], seconds: float) -> Dict[str, float]:
    """Return the milliseconds of a step, and the loss after the same number of steps."""
    losses = [float(step()) for _ in range(10)]
    begin = time.perf_counter()
    for _ in range(3):
        step()
    count = max(3, int(seconds / ROUNDS / ((time.perf_counter() - begin) / 3)))
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        times.append((time.perf_counter() - begin) / count * 1e3)
    return {"ms": round(float(np.median(times)), 4), "loss": losses[-1]}


def by_hand(sizes: List[int], rows: int, gpus: int, seconds: float) -> Dict[str, Any]:
    """Measure JAX alone."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:gpus]), ("ranks",))
    everywhere, shares = PartitionSpec(), PartitionSpec("ranks")

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        for i in range(0, len(parameters) - 2, 2):
            x = jnp.maximum(x @ parameters[i] + parameters[i + 1], 0)
        scores = jax.nn.log_softmax(x @ parameters[-2] + parameters[-1], axis=1)
        return -scores[jnp.arange(len(y)), y].mean()

    def trained(parameters: Any, speeds: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        loss, gradients = jax.lax.pmean((loss, gradients), "ranks")
        speeds = [MOMENTUM * v - RATE * g for v, g in zip(speeds, gradients)]
        return [p + v for p, v in zip(parameters, speeds)], speeds, loss

    specs = (everywhere, everywhere, shares, shares)
    sharded = jax.shard_map(
        trained, mesh=mesh, in_specs=specs, out_specs=(everywhere,) * 3, check_vma=False
    )
    program = jax.jit(sharded)
    x, y = (jax.device_put(a, NamedSharding(mesh, shares)) for a in data(sizes, rows * gpus))
    parameters = [jax.device_put(p, NamedSharding(mesh, everywhere)) for p in weights(sizes)]
    state = [parameters, [jnp.zeros_like(p) for p in parameters]]

    def step() -> float:
        *state[:], loss = program(*state, x, y)
        return float(loss)

    return measured(step, seconds)


def ours(sizes: List[int], rows: int, gpus: int, seconds: float, resident: bool) -> Dict[str, Any]:
    """Measure functions of this package."""
    import pytensor
    import pytensor.tensor as T

    from synk_core import Runtime

    with Runtime(gpus, use_gpu=True) as runtime:
        parameters = [pytensor.shared(value) for value in weights(sizes)]
        gradients = [pytensor.shared(np.zeros_like(p.get_value())) for p in parameters]
        speeds = [pytensor.shared(np.zeros_like(p.get_value())) for p in parameters]
        x, y = T.matrix("x", dtype="float32"), T.ivector("y")
        hidden = x
        for i in range(0, len(parameters) - 2, 2):
            hidden = T.maximum(hidden @ parameters[i] + parameters[i + 1], np.float32(0))
        scores = T.special.log_softmax(hidden @ parameters[-2] + parameters[-1], axis=1)
        loss = -scores[T.arange(y.shape[0]), y].mean()
        x_data, y_data = (runtime.data(array) for array in data(sizes, rows * gpus))
        given, scattered = {}, [x, y]
        if resident:
            held = [
                pytensor.shared(np.zeros((1, sizes[0]), "f4"), shape=(None, sizes[0])),
                pytensor.shared(np.zeros(1, "i4"), shape=(None,)),
            ]
            given, scattered = dict(zip(scattered, held)), []
        backward = runtime.function(
            scattered,
            loss,
            updates=list(zip(gradients, T.grad(loss, parameters))),
            givens=given,
            proof=False,
        )
        momentum, rate = np.float32(MOMENTUM), np.float32(RATE)
        news = [momentum * v - rate * g for v, g in zip(speeds, gradients)]
        forward = runtime.function(
            [],
            [],
            updates=[
                *zip(speeds, news),
                *((p, p + v) for p, v in zip(parameters, news)),
            ],
            proof=False,
        )
        if resident:
            runtime.collectives.scatter(held, [x_data, y_data])
        arguments = [] if resident else [x_data, y_data]
        acts = [
            backward.delayed(*arguments),
            runtime.delayed.all_reduce(gradients, op="avg"),
            forward.delayed(),
        ]
        return measured(lambda: runtime.step(*acts)[0], seconds)


WAYS: Dict[str, Callable[..., Dict[str, Any]]] = {
    "by hand": by_hand,
    "ours": lambda *how: ours(*how, resident=True),
    "ours, rows in host memory": lambda *how: ours(*how, resident=False),
}


def main() -> int:
    """Measure what was asked for, each way in a process of its own; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="1 2")
    parser.add_argument("--only", choices=list(NETWORKS), nargs="+", default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement: 5")
    parser.add_argument("--sizes", type=int, nargs="+", help="layers of a network of your own")
    parser.add_argument("--rows", type=int, default=64, help="of that, for each GPU: 64")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    networks = {name: NETWORKS[name] for name in options.only}
    if options.sizes:
        networks = {"own": (options.sizes, options.rows)}
    if options.way:
        way, gpus = options.way
        ((sizes, rows),) = networks.values()
        _write(json.dumps(WAYS[way](sizes, rows, int(gpus), options.seconds)))
        return 0
    _write("| network | GPUs | way | ms | beside by hand | loss |")
    _write("|---|---|---|---|---|---|")
    for name in networks:
        for gpus in options.gpus:
            hand = 0.0
            for way in WAYS:
                found = _alone(way, gpus, name, options)
                hand = hand or found["ms"]
                row = way, f"{found['ms']}", f"{found['ms'] / hand:.3f}", f"{found['loss']:.5f}"
                _write("| " + " | ".join((name, str(gpus), *row)) + " |")
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _alone(way: str, gpus: int, name: str, options: argparse.Namespace) -> Dict[str, Any]:
    """Measure one way in a process of its own."""
    which = ["--only", name]
    if options.sizes:
        which = ["--sizes", *map(str, options.sizes), "--rows", str(options.rows)]
    flags = ["--seconds", str(options.seconds), "--way", way, str(gpus)]
    environment = {
        **os.environ,
        "PYTENSOR_FLAGS": os.environ.get("PYTENSOR_FLAGS", "floatX=float32"),
    }
    done = subprocess.run(
        [sys.executable, __file__, *which, *flags],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{way} on {gpus} GPUs: {done.stderr[-3000:]}")
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
