"""GPU benchmarks: plain Theano, synkhronos on 1, 2 and 4 GPUs, bare NCCL, PyTorch DDP.

    python integration/benchmarks/gpu/run.py --out DIR
    python integration/benchmarks/gpu/run.py --out DIR --only resnet allreduce --gpus 1 2
    python integration/benchmarks/gpu/run.py --out DIR --device cpu --tiny     # tries the program

README.md in this folder explains the figures; the page is DIR/results.md. Each part is a process of
its own, which writes its rows to a file in DIR at once.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from gpubench.job import ABOUT, OURS, ROWS, Settings  # noqa: E402 - beside this file
from synk_benchmarks import machine, process, program  # noqa: E402
from synk_benchmarks.results import Row, joined, read_rows  # noqa: E402
from synk_benchmarks.tables import Table  # noqa: E402

PARTS = ("allreduce", "resnet", "vgg", "ddp")
NETWORKS = ("resnet", "vgg")
LIMITS_S = {"collectives": 90, "plain": 260, "ours": 260, "ddp": 120}
PACKAGES = ("synkhronos", "theano", "numpy", "nccl4py")
FLAGS = {
    "floatX": "float32",
    "gpuarray.preallocate": "0",
    "dnn.conv.algo_fwd": "time_on_shape_change",
    "dnn.conv.algo_bwd_data": "time_on_shape_change",
    "dnn.conv.algo_bwd_filter": "time_on_shape_change",
}
"""For all that run on Theano, plain or not; those in THEANO_FLAGS win."""


def jobs(only: Sequence[str], gpus: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Yield the kind, network and number of GPUs of each process that a run needs."""
    gpus = sorted(set(gpus))
    if "allreduce" in only:
        yield from (("collectives", "", n) for n in gpus if n > 1)
    for network in NETWORKS:
        if network in only:
            yield "plain", network, 1
            yield from (("ours", network, n) for n in gpus)
    if "ddp" in only:
        yield from (("ddp", "", n) for n in gpus)


def main() -> int:
    options = _options()
    environment = _environment(options)
    facts = machine.describe(
        *PACKAGES,
        GPUs=machine.gpus(),
        NCCL_NVLS_ENABLE=environment["NCCL_NVLS_ENABLE"],
        THEANO_FLAGS=environment["THEANO_FLAGS"],
        rounds=f"{options.rounds} of {options.steps} steps; {options.images} images",
    )
    left_out = {}
    if "ddp" in options.only and not _has_torch(options.torch_python):
        left_out["ddp"] = f"{options.torch_python} has no torch and torchvision"
    if options.tiny:
        left_out["a result to quote"] = "networks are tiny"
    parts = {
        "-".join(filter(None, (kind, network, str(n)))): functools.partial(
            _measured, options, environment, facts, (kind, network, n)
        )
        for kind, network, n in jobs(options.only, options.gpus)
        if kind not in left_out
    }
    options.markdown = options.out / "results.md"
    return program.run("GPU benchmarks", facts, parts, options, left_out, ours=OURS, more=speeds)


def _measured(
    options: argparse.Namespace,
    environment: Mapping[str, str],
    facts: dict[str, str],
    job: tuple[str, str, int],
) -> Iterator[Row]:
    """Run a job; yield its rows, those before a failure too."""
    kind, network, n = job
    folder: Path = options.out / "jobs" / "-".join(filter(None, (kind, network, str(n))))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    settings = Settings(
        options.device, n, options.steps, options.rounds, options.images, options.tiny, network
    )
    told = [json.dumps(asdict(settings)), str(folder)]
    if kind == "ddp":
        command = [options.torch_python, str(FOLDER / "ddp.py"), *told]
        # What was put on the path is for the other Python.
        environment = _of_its_own(environment)
    else:
        command = [sys.executable, "-m", "gpubench.job", kind, *told]
    try:
        process.ask(command, LIMITS_S[kind], environment)
    finally:
        yield from read_rows(folder / ROWS)
        if (folder / ABOUT).exists():
            for line in (folder / ABOUT).read_text(encoding="utf-8").splitlines():
                facts.update(json.loads(line))


def speeds(rows: Sequence[Row]) -> list[Table]:
    """Return the table of images per second, and of what they are of so many times one GPU's."""
    steps = [row for row in joined(rows) if row.images]
    ones = {(row.group, name): row for row in steps for name in row.cells if row.ranks == 1}
    table = Table("Images per second", ["", "GPUs", "images/s", "of linear"])
    for row in steps:
        for name in row.cells:
            rate = row.images / (row.value(name) or 1)
            line = [f"{row.group}, {name}", str(row.ranks), f"{rate:.0f}", ""]
            one = ones.get((row.group, name))
            if one is not None and row.ranks > 1:
                linear = row.ranks * one.images / (one.value(name) or 1)
                line[-1] = f"{rate / linear:.3f}"
            table.lines.append(line)
    return [table] if table.lines else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, positive = parser.add_argument, program.positive
    add("--out", type=Path, required=True, metavar="DIR", help="for results.md and jobs")
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="parts (default: all)")
    add("--gpus", nargs="+", type=positive, help="numbers of GPUs (default: 1, 2, 4 as there are)")
    add("--steps", type=positive, help="in a round (default: 10; tiny: 2)")
    add("--rounds", type=positive, help="of which the median counts (default: 5; tiny: 2)")
    add("--images", type=positive, help="in the data set (default: 2048, 1.2 GB; tiny: 32)")
    add("--device", default="cuda", help="cuda (default), cpu, or one that all ranks share")
    add("--tiny", action="store_true", help="small networks, to try the program")
    add("--torch-python", default="python3", help="with torch, torchvision (default: %(default)s)")
    add("--compiledir", type=Path, metavar="DIR", help="of Theano (default: a temporary folder)")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.steps = options.steps or (2 if options.tiny else 10)
    options.rounds = options.rounds or (2 if options.tiny else 5)
    options.images = options.images or (32 if options.tiny else 2048)
    if options.compiledir is None and options.device != "cpu":
        options.compiledir = Path(tempfile.gettempdir(), "theano-cache")
    if not options.gpus:
        count = machine.gpu_count() if options.device == "cuda" else 2
        options.gpus = [n for n in (1, 2, 4) if n <= count]
    if not options.gpus:
        parser.error("nvidia-smi tells of no GPU; name --gpus, or try --device cpu --tiny")
    return options


def _environment(options: argparse.Namespace) -> dict[str, str]:
    environment = dict(os.environ)
    # NVLink multicast needs rights that shared hosts do not give: NCCL fails where it lacks them.
    environment.setdefault("NCCL_NVLS_ENABLE", "0")
    flags = dict(FLAGS if options.device != "cpu" else {"floatX": "float32"})
    if options.compiledir:
        flags["base_compiledir"] = str(options.compiledir)
    texts = [f"{name}={value}" for name, value in flags.items()]
    texts += filter(None, [environment.get("THEANO_FLAGS")])
    environment["THEANO_FLAGS"] = ",".join(texts)
    path = [str(FOLDER), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return environment


def _of_its_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the paths that were set for this Python: torch brings CUDA's libraries along."""
    ours = ("PYTHONPATH", "LD_LIBRARY_PATH")
    return {name: value for name, value in environment.items() if name not in ours}


def _has_torch(python: str) -> bool:
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    command = [python, "-c", code, "torch", "torchvision"]
    try:
        process.ask(command, 60, _of_its_own(os.environ))
    except (OSError, process.Failed):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
