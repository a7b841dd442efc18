"""GPU benchmarks: plain Theano, synkhronos on 1, 2 and 4 GPUs, bare NCCL, PyTorch DDP.

    python integration/benchmarks/gpu/run.py --out DIR
    python integration/benchmarks/gpu/run.py --out DIR --only resnet,allreduce --gpus 1,2
    python integration/benchmarks/gpu/run.py --out DIR --device cpu --tiny     # tries the program

README.md in this folder tells what is measured, how, and what each figure means. Results are
written after each process, so that a run that is cut off keeps what it has.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Mapping

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from gpubench import cache, plan, tables  # noqa: E402 - beside this file
from gpubench.job import read_lines  # noqa: E402
from synk_benchmarks import machine, results  # noqa: E402
from synk_benchmarks.process import READY, Failed, Process  # noqa: E402

LEAST_S = 15
"""A process is not started with less time than this."""
SETTINGS = ("device", "steps", "rounds", "images", "tiny", "profile")
"""Options that every job is told."""
FLAGS = {
    "floatX": "float32",
    "gpuarray.preallocate": "0",
    "dnn.conv.algo_fwd": "time_on_shape_change",
    "dnn.conv.algo_bwd_data": "time_on_shape_change",
    "dnn.conv.algo_bwd_filter": "time_on_shape_change",
}
"""For all that run on Theano, plain or not; those in THEANO_FLAGS win."""


class Run:
    """A run: starts the jobs of a plan, one after the other, and keeps the results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._out: Path = options.out.resolve()
        self._deadline: float = time.monotonic() + options.budget_s
        self._failures = 0
        self._environment = _environment(options)
        settings = {
            "steps and rounds": f"{options.steps} and {options.rounds}",
            "images": str(options.images),
            "NCCL_NVLS_ENABLE": self._environment["NCCL_NVLS_ENABLE"],
            "THEANO_FLAGS": self._environment["THEANO_FLAGS"],
        }
        if options.tiny:
            settings["tiny"] = "small networks, to try the program: no result to quote"
        described = machine.describe(GPUs=machine.gpus())
        self.result = results.Result([results.Run(described, settings)])
        (self._run,) = self.result.runs

    def __call__(self) -> int:
        """Run everything; returns the exit status."""
        for jobs in plan.groups(self._options.only, self._options.gpus).values():
            if self._options.together:
                self._together(jobs)
            else:
                for job in jobs:
                    self._together([job])
        return 1 if self._failures else 0

    def _together(self, jobs: list[plan.Job]) -> None:
        """Prepare jobs at the same time, and have them measure one after the other."""
        running: dict[plan.Job, Process] = {}
        limit_s = sum(job.limit_s for job in jobs)
        began = time.monotonic()
        try:
            for job in jobs:
                if self._possible(job):
                    running[job] = self._start(job, limit_s)
            for job, process in list(running.items()):
                if not self._succeeds(job, functools.partial(process.hear, READY)):
                    running.pop(job).end()
                    self._take(job, began)
            for job, process in list(running.items()):
                self._succeeds(job, functools.partial(_measure, process))
                running.pop(job).end()
                self._take(job, began)
        finally:
            for job, process in running.items():
                process.end()
                self._run.left_out[job.name] = "interrupted"
                self._take(job, began)

    def _succeeds(self, job: plan.Job, step: Callable[[], object]) -> bool:
        try:
            step()
        except Failed as error:
            self._failures += 1
            self._run.left_out[job.name] = str(error)
            return False
        return True

    def _possible(self, job: plan.Job) -> bool:
        why = ""
        if self._left() < LEAST_S:
            why = "the time was over"
        elif job.kind == "ddp" and not _has_torch(self._options.torch_python):
            why = f"{self._options.torch_python} has no torch and torchvision"
        if why:
            self._run.left_out[job.name] = why
            self._save()
        return not why

    def _start(self, job: plan.Job, limit_s: float) -> Process:
        folder = self._out / "jobs" / job.name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        environment, options = self._environment, self._options
        settings = {
            **asdict(job),
            **{name: getattr(options, name) for name in SETTINGS},
        }
        more = ["--settings", json.dumps(settings), "--out", str(folder / "rows.jsonl")]
        if job.kind == "ddp":
            command = [options.torch_python, str(FOLDER / "ddp.py"), *more]
            # What was put on the path is for the other Python.
            environment = _of_its_own(environment)
        else:
            command = [sys.executable, "-m", "gpubench.job", job.kind, *more]
        _say(f"{job.name} begins; {self._left():.0f} s are left")
        limit_s = min(limit_s, self._left())
        return Process(command, limit_s, folder / "log.txt", environment, folder)

    def _take(self, job: plan.Job, began: float) -> None:
        seconds = time.monotonic() - began
        rows, about = read_lines(self._out / "jobs" / job.name / "rows.jsonl")
        self.result.rows += rows
        self._run.about.update(about)
        self._run.settings[f"took: {job.name}"] = f"{seconds:.0f} s"
        self._save()
        _say(f"{job.name}: {self._run.left_out.get(job.name, 'done')}, {seconds:.0f} s")

    def _save(self) -> None:
        self.result.save(self._out / "results.json")
        page = tables.page(self.result).markdown()
        (self._out / "results.md").write_text(page, encoding="utf-8")

    def _left(self) -> float:
        return self._deadline - time.monotonic()


def _measure(process: Process) -> None:
    process.tell("go")
    process.finish()


def main() -> int:
    """Measure, write, print the tables."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was begun is ended
    options.out.mkdir(parents=True, exist_ok=True)
    if options.cache_archive:
        cache.unpack(options.cache_archive, options.compiledir)
        _say(f"unpacked {options.cache_archive.name}")
    run = Run(options)
    status = 128 + signal.SIGINT
    try:
        status = run()
    except KeyboardInterrupt:
        _say("interrupted; what was measured before is kept")
    finally:
        if options.save_cache and options.compiledir.is_dir():
            pieces = cache.pack(options.compiledir, options.save_cache)
            _say(f"packed the cache: {len(pieces)} pieces")
        sys.stdout.write(tables.page(run.result).plain())
    return status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="for results.json, results.md, jobs")
    add("--only", default=",".join(plan.PARTS), help="parts, with commas (default: %(default)s)")
    add("--gpus", help="numbers of GPUs, with commas (default: those of 1,2,4 that are there)")
    add("--steps", type=int, help="in a round (default: 10; tiny: 2)")
    add("--rounds", type=int, help="of which the median counts (default: 5; tiny: 2)")
    add("--images", type=int, help="in the data set (default: 2048, 1.2 GB; tiny: 32)")
    add("--budget-s", type=float, default=540, help="for everything (default: %(default)s)")
    add("--device", default="cuda", help="cuda (default), cpu, or one that all ranks share")
    add("--tiny", action="store_true", help="small networks, to try the program")
    add("--together", action="store_true", help="prepare a network's contenders at the same time")
    add("--profile", action="store_true", help="profile the timeline's workers; costs some time")
    add("--torch-python", default="python3", help="with torch, torchvision (default: %(default)s)")
    add("--compiledir", type=Path, metavar="DIR", help="of Theano (default: a temporary folder)")
    add("--cache-archive", type=Path, metavar="FILE", help="unpack into --compiledir before")
    add("--save-cache", type=Path, metavar="DIR", help="pack --compiledir afterwards, in pieces")
    add("--read", action="store_true", help="show DIR/results.json, measuring nothing")
    options = parser.parse_args()
    if options.read:
        sys.stdout.write(tables.page(results.load(options.out / "results.json")).plain())
        sys.exit(0)
    options.only = options.only.split(",")
    options.steps = options.steps or (2 if options.tiny else 10)
    options.rounds = options.rounds or (2 if options.tiny else 5)
    options.images = options.images or (32 if options.tiny else 2048)
    if options.compiledir is None and (options.device != "cpu" or options.cache_archive):
        options.compiledir = Path(tempfile.gettempdir(), "theano-cache")
    try:
        plan.groups(options.only, [1])  # the parts are right, whatever GPUs there are
        named = options.gpus and [int(n) for n in options.gpus.split(",")]
        options.gpus = named or _there(options)
        plan.groups(options.only, options.gpus)
    except ValueError as error:
        parser.error(str(error))
    return options


def _there(options: argparse.Namespace) -> list[int]:
    if options.device != "cuda":
        return [1, 2]
    count = machine.gpu_count()
    if not count:
        raise ValueError("nvidia-smi tells of no GPU; name --gpus, or try --device cpu --tiny")
    return [n for n in (1, 2, 4) if n <= count]


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
    environment = _of_its_own(os.environ)
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    command = [python, "-c", code, "torch", "torchvision"]
    try:
        return not subprocess.run(
            command, env=environment, capture_output=True, timeout=60, check=False
        ).returncode
    except (OSError, subprocess.SubprocessError):
        return False


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
