"""``python -m synkhronos._benchmarks call``: one measurement, printed as JSON."""

from __future__ import annotations

import argparse
import json
import sys

import synkhronos as synk

from .measures import MEASURES


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(MEASURES))
    parser.add_argument("--processes", type=int)
    parser.add_argument("--devices")
    parser.add_argument("--plot", help="where to draw the scaling")
    options = parser.parse_args()
    if options.devices in (None, "cpu"):
        use_gpu = None if options.devices is None else False
        fork = {"n_parallel": options.processes, "use_gpu": use_gpu}
    else:
        fork = {"devices": options.devices.split(",")}
    # How many there are is fork()'s to say; workers of this one never have to start.
    size = synk.fork(**fork, verbose=False)
    synk.close()
    result = MEASURES[options.name](fork, size)
    if options.plot:
        from synkhronos.extensions.plots import plot_scaling

        what = result["results"][0]["what"]
        drawn = [one for one in result["results"] if one["what"] == what]
        plot_scaling(drawn, options.plot, title=f"{result['title']}, {what}")
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    _main()
