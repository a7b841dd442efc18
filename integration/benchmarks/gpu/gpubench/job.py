"""The process that measures: ``python -m gpubench.job KIND --settings JSON --out FILE``.

It prepares (compiles, fills memory), writes the line "ready", waits for a line, and measures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from synk_benchmarks.process import READY
from synk_benchmarks.results import Row, alone, read_row

KINDS = ("plain", "ours", "collectives", "starting")


@dataclass(frozen=True)
class Settings:
    """What a job is told.

    Attributes:
        device: "cuda" for the first `gpus` CUDA devices, "cpu" for processes, else the name of a
            device that all ranks share, such as "opencl0:0".
        gpus: number of ranks.
        steps, rounds: steps in a round, and rounds.
        images: in the data set.
        tiny: a network for trying the program, and no result to quote.
        network, measures: see `plan.Job`.
        profile: write profiles, at some cost in time.
    """

    device: str
    gpus: int
    steps: int
    rounds: int
    images: int
    tiny: bool
    network: str
    measures: tuple[str, ...]
    profile: bool

    @property
    def cuda(self) -> bool:
        """Whether it is about CUDA devices."""
        return self.device == "cuda"

    def devices(self) -> dict[str, Any]:
        """Return the arguments of fork() that choose the devices."""
        if self.device == "cpu":
            return {"n_parallel": self.gpus, "use_gpu": False}
        if self.cuda:
            return {"devices": [f"cuda{rank}" for rank in range(self.gpus)]}
        return {"devices": [self.device] * self.gpus}


class Report:
    """What a job tells: rows and remarks into the file, "ready" to its parent.

    Args:
        path: the file.
        settings: of the job.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings

    def row(self, part: str, what: str, contender: str, rounds: Any, **more: Any) -> None:
        """Write a row; `rounds` is a number or a sequence of them."""
        numbers = rounds if isinstance(rounds, (list, tuple)) else (rounds,)
        samples = tuple(map(float, numbers))
        self._write(alone(part, what, contender, self._settings.gpus, samples, **more).saved())

    def about(self, name: str, value: object) -> None:
        """Write something to know about the run; the last of a name counts."""
        self._write({"about": {name: str(value)}})

    def ready(self) -> None:
        """Say that all is prepared, and wait for the turn to measure."""
        sys.stdout.write(READY + "\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            sys.exit("it was not to measure")

    def beside(self, name: str) -> Path:
        """Return a path for a file that belongs to the results."""
        return self._path.parent / name

    def _write(self, content: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def read_lines(path: Path) -> tuple[list[Row], dict[str, str]]:
    """Read the rows and remarks that a job has written so far; half a line is left out."""
    rows: list[Row] = []
    about: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    for content in map(json.loads, lines):
        if "about" in content:
            about.update(content["about"])
        else:
            rows.append(read_row(content))
    return rows, about


def main() -> None:
    """Do what the module says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    content = json.loads(options.settings)
    content["measures"] = tuple(content["measures"])
    settings = Settings(**{field.name: content[field.name] for field in fields(Settings)})
    if options.kind != "starting":  # which measures this
        # Theano 1.0.5 comes to life by it, also where no .pth file sees to that. Plain Theano needs
        # it too, and uses nothing else of it.
        importlib.import_module("synk_theano")
    job = importlib.import_module(f"{__package__}.{options.kind}")
    job.main(settings, Report(options.out, settings))


if __name__ == "__main__":
    main()
