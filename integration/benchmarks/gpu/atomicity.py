"""What `fork(atomic=True)` costs on GPUs beside `atomic=False`: time of a step, and memory.

    python integration/benchmarks/gpu/atomicity.py --gpus 2 --networks mlp vgg --json results.json

Two programs on the same GPUs, one of each kind; they take turns, round by round, and nothing else
is at work. Memory is what each process has on its GPU after that, as `nvidia-smi` says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import gpubench  # noqa: E402, F401 - beside this file; makes synk_benchmarks importable
from synk_benchmarks.process import Failed, Process  # noqa: E402

WARM = 8
TOLD = "@"
"""What the lines begin with that are meant for the parent."""
LIMIT_S = 3600
"""Seconds for a program."""
END_S = 30
"""Seconds for its end."""


def contender(network: str, gpus: int, is_atomic: bool, steps: int) -> None:
    """In a process of its own: measure a round for each line that comes."""
    import numpy as np
    import theano
    import theano.tensor as T

    import synkhronos as synk
    from synkhronos.extensions import updates
    from synkhronos.extensions.train import make_train_function

    synk.fork(n_parallel=gpus, use_gpu=True, atomic=is_atomic, verbose=False)
    synk.distribute()
    began = time.perf_counter()
    random = np.random.RandomState(0)
    if network == "mlp":
        sizes, batch = [1024, 4096, 4096, 4096, 10], 1024
        x, y = T.fmatrix("x"), T.ivector("y")
        h, params = x, []
        for k, (n_in, n_out) in enumerate(zip(sizes, sizes[1:])):
            w = theano.shared((random.randn(n_in, n_out) * 0.02).astype("float32"), name=f"w{k}")
            b = theano.shared(np.zeros(n_out, "float32"), name=f"b{k}")
            params += [w, b]
            h = h.dot(w) + b
            h = T.tanh(h) if n_out != 10 else T.nnet.softmax(h)
        loss = T.nnet.categorical_crossentropy(h, y).mean()
        rows = random.rand(4096, 1024).astype("float32")
        labels = random.randint(0, 10, 4096).astype("int32")
        more: Any = {}
        inputs = [x, y]
    else:
        from gpubench import networks

        built = networks.build(network, False, 512)
        loss, params, inputs, batch = built.loss, built.params, built.inputs, built.batch
        more = {"updates": built.updates}
        shapes = networks.shapes(built)
        rows, labels = np.empty(shapes[0], "float32"), np.empty(shapes[1], "int32")
        networks.fill(built, rows, labels)
    train = make_train_function(
        loss, params, inputs, updates.nesterov_momentum, learning_rate=1e-3, momentum=0.9, **more
    )
    data = train.build_inputs(rows, labels)
    synk.distribute()
    built_s = time.perf_counter() - began
    many = batch * gpus
    gradient = train.flat_grad
    wait = theano.function([], params[-1].sum())
    wait_gradient = theano.function([], gradient[:1].sum())

    def some(count: int) -> float:
        began = time.perf_counter()
        for k in range(count):
            first = k * many % (len(rows) - many + 1)
            train(*data, batch=slice(first, first + many))
        wait()
        return (time.perf_counter() - began) / count

    def reductions(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            synk.all_reduce(gradient, op="avg")
        wait_gradient()
        return (time.perf_counter() - began) / count

    def tell(**values: Any) -> None:
        print(TOLD, json.dumps(values), flush=True)

    some(WARM)
    reductions(WARM)
    elements = int(np.prod(gradient.get_value(borrow=True, return_internal_type=True).shape))
    pids = [os.getpid(), *synk._default.default().worker_pids]
    tell(built_s=built_s, elements=elements, pids=pids, variables=len(params))
    for line in sys.stdin:
        if line.strip() == "step":
            tell(seconds=some(steps))
        elif line.strip() == "all_reduce":
            tell(seconds=reductions(10 * steps))
        else:
            break
    synk.close()


def started(network: str, gpus: int, is_atomic: bool, steps: int, log: Path) -> Process:
    """Start a process of `contender`."""
    command = [sys.executable, __file__, "--contender", network, str(int(is_atomic))]
    return Process([*command, "--gpus", str(gpus), "--steps", str(steps)], LIMIT_S, log)


def told(process: Process) -> dict[str, Any]:
    """Return what it tells next."""
    answer: dict[str, Any] = json.loads(process.hear(TOLD))
    return answer


def measured(process: Process, what: str) -> float:
    """Return the seconds of one, in a round of them."""
    process.tell(what)
    return float(told(process)["seconds"])


def ended(process: Process) -> None:
    """Have it close, and end it for certain."""
    with contextlib.suppress(Failed):
        process.finish(END_S)
    process.end()


def memory_of(pids: list[int]) -> list[int]:
    """MiB that these processes have on GPUs."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    found = dict(map(int, line.split(",")) for line in done.stdout.splitlines() if line)
    return [found.get(pid, -1) for pid in pids]


def compare(
    network: str, gpus: int, rounds: int, steps: int, in_place_first: bool
) -> dict[str, Any]:
    """Both kinds of one network: rounds in turns. Who comes first finds all memory free."""
    kinds = {"atomic": True, "in place": False}
    if in_place_first:
        kinds = dict(reversed(kinds.items()))
    result: dict[str, Any] = {"network": network, "gpus": gpus, "steps": steps}
    programs = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="synk-bench-")))
        for name, is_atomic in kinds.items():
            # One after the other: with a cold cache they would queue for Theano's lock.
            programs[name] = started(network, gpus, is_atomic, steps, folder / name)
            stack.callback(ended, programs[name])
            result[name] = told(programs[name])
        for what in ("step", "all_reduce") if gpus > 1 else ("step",):
            times: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(rounds):
                for name, program in programs.items():
                    times[name].append(measured(program, what))
            for name in kinds:
                result[name][what] = times[name]
        for name in kinds:
            result[name]["memory_mib"] = memory_of(result[name].pop("pids"))
    return result


def show(result: dict[str, Any]) -> None:
    """A line for each figure."""
    about = f"{result['network']}, {result['gpus']} GPUs, {result['atomic']['elements']:,} float32"
    for what in ("step", "all_reduce"):
        if what not in result["atomic"]:
            continue
        a, b = (statistics.median(result[name][what]) for name in ("atomic", "in place"))
        print(f"{about}: {what}: atomic {1e3 * a:.3f} ms, in place {1e3 * b:.3f} ms, {a / b:.3f}")
    memory = [result[name]["memory_mib"] for name in ("atomic", "in place")]
    print(f"{about}: memory by rank: atomic {memory[0]} MiB, in place {memory[1]} MiB", flush=True)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["mlp"], choices=["mlp", "vgg", "resnet"])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="in a round")
    parser.add_argument("--in-place-first", action="store_true", help="start that program first")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        network, is_atomic = options.contender
        contender(network, options.gpus, is_atomic == "1", options.steps)
        return
    results = []
    for network in options.networks:
        about = (network, options.gpus, options.rounds, options.steps)
        results.append(compare(*about, options.in_place_first))
        show(results[-1])
        if options.json:
            options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
