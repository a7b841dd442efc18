"""The options `--processes` and `--devices`, as arguments of `synk.fork()`."""

from __future__ import annotations

import argparse
from typing import Any


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two. Without them `fork()` takes what there is."""
    parser.add_argument("--processes", type=int, help="how many (default: one per GPU, or core)")
    parser.add_argument(
        "--devices", help="'cpu', or Theano's names with commas, one per process: cuda0,cuda1"
    )


def fork_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that parsed options mean."""
    if options.devices is None or options.devices == "cpu":
        # None leaves the choice to fork(): GPUs if there are any, else CPU processes.
        return {"n_parallel": options.processes, "use_gpu": options.devices and False}
    return {"devices": options.devices.split(",")}


def parsed(about: str | None) -> dict[str, Any]:
    """Read the command line of a program that has no other options."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    return fork_arguments(parser.parse_args())
