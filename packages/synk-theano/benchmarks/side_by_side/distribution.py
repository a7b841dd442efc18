"""Bytes and seconds until the workers have a training function: flat form beside plain pickle."""

from __future__ import annotations

import contextlib
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable
from unittest import mock

from synk_benchmarks.process import READY, Process
from synk_benchmarks.results import BYTES, Row, beside
from theano.gof import compilelock

from synk_core import Runtime
from synk_core._graph.shared import VariableRegistry
from synk_core._graph.transfer import pickling
from synk_core._master import builder
from synk_core._master.builder import compile_form

from . import networks
from .plan import Plan
from .targets import PICKLE

WORKERS = (1, 4)
LIMIT_S = 600
MOST_ROUNDS = 3  # each starts processes anew

Network = Callable[[], "tuple[list[Any], Any, networks.Parameters]"]
NETWORKS: dict[str, Network] = {"MLP": networks.mlp, "ResNet-50": networks.resnet}
QUICK_NETWORKS: dict[str, Network] = {
    "MLP": networks.mlp,
    "ResNet-14": lambda: networks.resnet((1, 1, 1, 1), width=16),
}


def distribution(plan: Plan) -> list[Row]:
    """Send each network's training function to one worker and to four that have started."""
    rows = []
    for name, network in (QUICK_NETWORKS if plan.quick else NETWORKS).items():
        with pickling.deep_recursion():
            begin = time.monotonic()
            training = _Training(name, network)
            plan.report(f"{name}: built in {time.monotonic() - begin:.0f} s")
            rows += training.sizes()
            for workers in WORKERS:
                rows += training.times(workers, min(plan.rounds, MOST_ROUNDS))
    return rows


class _Training:
    """A training function, compiled once: it is the way to the workers that is measured."""

    def __init__(self, name: str, network: Network) -> None:
        self._name = name
        self._inputs, self._loss, self._parameters = network()
        self._updates = networks.training(self._loss, self._parameters)
        with Runtime(1) as runtime, self._compiled_once() as kept:
            self._build(runtime)
            (self._function,) = kept.values()

    def sizes(self) -> list[Row]:
        """Return rows of the function's bytes, without its values and with them."""
        registry = VariableRegistry()
        for variable in self._function.get_shared():
            registry.number_of(variable)
        values = float(_length(registry.records(0), registry))
        flat = float(_length([self._function], registry))
        plain = float(len(pickle.dumps(self._function, -1)))
        nodes = len(self._function.maker.fgraph.apply_nodes)
        less = f"{self._name}, {nodes} nodes: the function", (flat,), f"{PICKLE} less values"
        whole = f"{self._name}: with its values", (flat + values,), PICKLE
        return [
            beside("bytes", *less, (plain - values,), unit=BYTES),
            beside("bytes", *whole, (plain,), unit=BYTES),
        ]

    def times(self, workers: int, count: int) -> list[Row]:
        """Return rows of the seconds until all workers have it; the C modules are compiled."""
        taken = [(self._ours(workers), self._plain(workers)) for _ in range(count)]
        ours = tuple(seconds for seconds, _ in taken)
        theirs = tuple(seconds for _, (seconds, _) in taken)
        with compilelock.lock_ctx():
            held = self._ours(workers)
        locks = sum(locks for _, (_, locks) in taken) / count
        title = f"{self._name} to {workers} worker{'s' if workers > 1 else ''}"
        note = f"the workers took the compile lock {locks:.0f} times" if locks else ""
        lock = f"{title}, compile lock held", (held,), "not held", (statistics.median(ours),)
        return [
            beside("distribution", title, ours, PICKLE, theirs, note),
            beside("distribution", *lock),
        ]

    def _ours(self, workers: int) -> float:
        with Runtime(workers + 1) as runtime, self._compiled_once():
            runtime.distribute()  # waits until the workers have started
            self._build(runtime)
            begin = time.perf_counter()
            runtime.distribute()
            return time.perf_counter() - begin

    def _build(self, runtime: Runtime) -> Any:
        return runtime.function(self._inputs, self._loss, updates=self._updates)

    @contextmanager
    def _compiled_once(self) -> Iterator[dict[Any, Any]]:
        """Compile at the first time, and take the same function later."""
        kept: dict[Any, Any] = self.__dict__.setdefault("_kept", {})

        def once(spec: Any, form: Any, *more: Any) -> Any:
            if form not in kept:
                kept[form] = compile_form(spec, form, *more)
            return kept[form]

        with mock.patch.object(builder, "compile_form", once):
            yield kept

    def _plain(self, workers: int) -> tuple[float, int]:
        """Send it by plain pickle to processes with Theano; return (seconds, locks taken)."""
        with (
            tempfile.TemporaryDirectory(prefix="synk-bench-") as folder,
            contextlib.ExitStack() as stack,
        ):
            path = Path(folder) / "function"
            command = [sys.executable, "-m", "side_by_side.loader", str(path)]
            loaders = []
            for number in range(workers):
                log = Path(folder) / f"log-{number}"
                loader = Process(command, LIMIT_S, log, folder=Path(__file__).parent.parent)
                stack.callback(loader.end)
                loaders.append(loader)
            for loader in loaders:
                loader.hear(READY)
            begin = time.perf_counter()
            path.write_bytes(pickle.dumps(self._function, -1))
            for loader in loaders:
                loader.tell("go")
            taken = [int(loader.hear("loaded")) for loader in loaders]
            return time.perf_counter() - begin, max(taken)


def _length(content: Any, registry: VariableRegistry) -> int:
    data, buffers = pickling.dumps(content, registry)
    return len(data) + sum(map(len, buffers))
