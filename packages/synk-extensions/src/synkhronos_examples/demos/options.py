"""The two options that all demos have, as arguments of `synk.fork()`."""

from __future__ import annotations

import argparse
from typing import Any


def fork_arguments(about: str | None) -> dict[str, Any]:
    """Read the command line. Without options `fork()` takes what there is."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, help="how many (default: one per GPU, or core)")
    parser.add_argument(
        "--devices", help="'cpu', or Theano's names with commas, one per process: cuda0,cuda1"
    )
    options = parser.parse_args()
    if options.devices is None or options.devices == "cpu":
        # None leaves the choice to fork(): GPUs if there are any, else CPU processes.
        return {"n_parallel": options.processes, "use_gpu": options.devices and False}
    return {"devices": options.devices.split(",")}
