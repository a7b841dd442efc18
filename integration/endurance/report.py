"""Makes the documentation's figures of reliability from what the runs here have recorded.

    python integration/endurance/report.py                  page and picture from results/*.json
    python integration/endurance/report.py --take build/endurance      keep the results there first

A folder that is taken may have `soak.json`, `kill_trials.json`, `host_kills.json`, and
`faults.json`, the list that the fault suite writes to the file SYNK_THEANO_FAULTS_OUT.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Iterator

import _results

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "reliability_figures.md"
PICTURE = "reliability_soak.svg"
SHOWN = f"![Memory, descriptors, threads and segments over the time]({PICTURE})"
POINTS = 300
"""At most, of a curve in the picture."""

_WORKED = {
    "starting": "starting",
    "computing": "computing for long",
    "updating": "updating a variable",
    "collective": "in a collective",
    "stepping": "in a step of several acts",
    "distributing": "distributing functions",
    "growing": "growing a `Data`",
    "idle": "idle",
    "closing": "closing",
    "mixed": "doing any of these",
}

_FAULTS = {
    "raises": "an exception in a worker",
    "memory": "a worker runs out of memory",
    "huge": "a worker asks for too much memory",
    "slow": "a worker is 0.8 s late",
    "SIGSTOP": "a worker is stopped",
    **{name: f"a worker gets {name}" for name in ("SIGKILL", "SIGSEGV", "SIGABRT")},
    "master-raises": "an exception in the master",
    "master-memory": "the master runs out of memory",
    "ctrl-c": "Ctrl-C",
    "ctrl-c-twice": "Ctrl-C twice",
    **{f"master-{name}": f"the master gets {name}" for name in ("SIGTERM", "SIGHUP", "SIGKILL")},
    "terminal-default": "the terminal is closed",
    "terminal-ignored": "the terminal is closed, SIGHUP ignored",
    "shm-full": "`/dev/shm` is full",
}
"""In the order of the page."""

_LAUNCHED = {
    "mpich": "`mpiexec`",
    "openmpi": "`mpiexec --with-ft ulfm`",
    "slurm": "`srun --kill-on-bad-exit=1` of Slurm 22.05",
}


def take(folder: Path, results: Path) -> None:
    """Copy the results that a folder has."""
    for name in ("soak.json", "kill_trials.json", "host_kills.json"):
        if (folder / name).exists():
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            _results.write(results / name, content)
    if (folder / "faults.json").exists():
        cases = json.loads((folder / "faults.json").read_text(encoding="utf-8"))
        _results.write(results / "faults.json", _results.described("faults", cases=cases))


def load(results: Path) -> dict[str, dict[str, Any]]:
    """Return all results, by kind."""
    found = {}
    for path in sorted(results.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found[content["kind"]] = content
    return found


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a page of Markdown."""
    lines = [f"<!-- Made by integration/endurance/{Path(__file__).name}; not to be edited. -->"]
    sections = (faults, kill_trials, host_kills, soak)
    for kind, section in ((each.__name__, each) for each in sections):
        if kind in results:
            picture = ["", SHOWN] if kind == "soak" else []
            lines += ["", *section(results[kind]), *picture, "", _where(results[kind])]
    return "\n".join(lines) + "\n"


def faults(result: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the faults, with the seconds until each was reported."""
    cases = result["cases"]
    yield "### Every fault in every state"
    yield ""
    deaths = [case["seconds"] for case in cases if case["exception"] == "WorkerDied"]
    yield (
        f"{len(cases)} combinations. The times are those until the program had the exception, or, "
        f"if it was killed, until all its processes were gone. "
        f"The {len(deaths)} deaths of workers took {_time(max(deaths, default=0.0))} at most."
    )
    yield ""
    yield from _row("fault", "states", "median", "worst", "while")
    yield from _row("---", "--:", "--:", "--:", "---")
    for fault, words in _FAULTS.items():
        these = [case for case in cases if case["fault"] == fault]
        timed = sorted((c["seconds"], c["state"]) for c in these if c["seconds"] is not None)
        count = str(len({case["state"] for case in these}))
        if timed:
            median = statistics.median(seconds for seconds, _ in timed)
            worst, state = timed[-1]
            yield from _row(words, count, _time(median), _time(worst), state)
        elif these:
            yield from _row(words, count, "the program goes on", "", "")


def kill_trials(result: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the seconds until deaths and interrupts were reported, and what was left."""
    told = result["summary"]
    interrupts = told["interrupted"]["all"]["trials"]
    yield f"### {told['trials'] - interrupts:,} times `kill -9`, {interrupts:,} times Ctrl-C"
    yield ""
    left = ", ".join(f"{count} {what}" for what, count in told["leaks"].items())
    yield (
        f"At a random moment a random worker or the master was killed, or Ctrl-C came. "
        f"{told['wrong']} trials went otherwise than promised. Left behind, in all: {left}."
    )
    yield ""
    yield from _row("killed or interrupted", "trials", "median", "99 %", "worst", "while")
    yield from _row("---", "--:", "--:", "--:", "--:", "---")
    for killed, name in {"worker": "worker", "master": "master", "interrupted": "Ctrl-C"}.items():
        rows = {state: row for state, row in told[killed].items() if row["trials"]}
        every = rows.pop("all", None)
        if every:
            times = [_time(every[time]) for time in ("median_s", "p99_s", "worst_s")]
            slowest = max(rows, key=lambda state: rows[state]["worst_s"])
            yield from _row(name, str(every["trials"]), *times, _WORKED[slowest])


def host_kills(result: dict[str, Any]) -> Iterator[str]:
    """Yield what happened to jobs on two hosts of which a rank was killed."""
    launchers = result["launchers"].values()
    yield f"### {sum(each['kills'] for each in launchers)} times `kill -9` on two hosts"
    yield ""
    yield (
        "At a random moment a random rank of four, on two simulated hosts, was killed. "
        f"{sum(each['wrong'] for each in launchers)} jobs went otherwise than promised. Left "
        f"behind, in all: {sum(len(each['left']) for each in launchers)} segments. "
        "*Exception*: the program got one; else the job was ended at once. The times are those "
        "from the kill to the end of the job; Slurm waited for 5 s between SIGTERM and SIGKILL."
    )
    yield ""
    yield from _row("launcher", "kills", "exception", "status 0", "median", "worst")
    yield from _row("---", *["--:"] * 5)
    for name, each in result["launchers"].items():
        words = f"{_LAUNCHED[name]}, {each['mpi']}"
        counts = [str(each[key]) for key in ("kills", "told", "zero")]
        yield from _row(words, *counts, _time(each["median_s"]), _time(each["worst_s"]))


def soak(result: dict[str, Any]) -> Iterator[str]:
    """Yield a table of how much of each resource was in use."""
    yield f"### {_duration(result['seconds'])} of random work"
    yield ""
    yield (
        f"{result['calls']:,} acts of {len(result['acts'])} kinds on {result['ranks']} ranks, in "
        f"{result['lives']} runtimes one after the other. Every result was NumPy's. `close()` "
        f"took {_time(result['close_s']['worst'])} at most."
    )
    yield ""
    yield from _row("resource", "median", "growth", "growth in one runtime", "allowed")
    yield from _row("---", "--:", "--:", "--:", "--:")
    for name, row in result["growths"].items():
        unit = " MiB" if "memory" in name else ""
        alone = result["growths_in_one_runtime"][name]["growth"]
        numbers = (row["level"], row["growth"], alone, row["allowed"])
        yield from _row(name, *(f"{number:g}{unit}" for number in numbers))


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |"


def _where(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    named = ("Python", "synkhronos", "Theano", "numpy")
    return (
        f"Measured {result['when'][:10]} on {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB, {machine['system']}, with "
        f"{', '.join(f'{name} {versions[name]}' for name in named if name in versions)}."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1.5:
        return f"{seconds:.0f} seconds"
    return f"{minutes:.0f} minutes"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the soak's curves, one below the other."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    groups = {
        "MiB": ("master's memory", "largest worker's memory", "shared memory"),
        "descriptors": ("master's descriptors", "most of a worker's descriptors"),
        "segments, threads": ("segments", "master's threads", "workers' threads"),
    }
    samples = result["samples"][:: max(len(result["samples"]) // POINTS, 1)]
    minutes = [one["seconds"] / 60 for one in samples]
    # The same picture from the same numbers, on any day.
    settings = {"svg.hashsalt": "soak", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(settings):
        figure, axes = plt.subplots(len(groups), sharex=True, figsize=(7, 6))
        for axis, (label, names) in zip(axes, groups.items()):
            for name in names:
                axis.plot(minutes, [one[name] for one in samples], linewidth=1, label=name)
            axis.set_ylim(bottom=0)
            axis.set_ylabel(label)
            axis.legend(loc="lower right", fontsize=8)
            axis.grid(alpha=0.3)
        axes[-1].set_xlabel("minutes")
        figure.tight_layout()
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    """Write page and picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--take", type=Path, help="a folder with new results, which are kept")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where to write")
    arguments = parser.parse_args()
    if arguments.take is not None:
        take(arguments.take, _results.FOLDER)
    results = load(_results.FOLDER)
    (arguments.docs / PAGE).write_text(page(results), encoding="utf-8")
    if "soak" in results:
        draw(results["soak"], arguments.docs / PICTURE)


if __name__ == "__main__":
    main()
