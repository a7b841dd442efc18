"""Random programs of shared arrays over 2 to 6 processes, checked against a model.

    python packages/synk-shm/tests/stress/driver.py --seed N [--count K] [--seconds S] [--verbose]

runs the programs with the seeds N, N+1, ... Each makes, attaches, sends, resizes, locks, closes,
unlinks and drops arrays in processes that are forked, spawned, exit and are killed by SIGKILL, also
in the middle of a command. One command runs at a time, so that the model can predict the outcome,
every byte that is read, and every name in /dev/shm after every step. At the end of a program no
segment, no descriptor and no process is left, and nothing was printed. The driver prints a program
that fails; its seed runs it again, and ``--shrink`` searches for a shorter one that fails too.

`program` generates the steps, `model` and `life` predict their outcomes (`state` has their data),
`run` runs a program in the `world` of processes. Each process is an `actor`, forked from the warm
`zygote` or by another actor.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import secrets
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Optional

# The modules that import NumPy are imported in functions: see `isolate`.
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def isolate() -> bool:
    """Give this process and its children a private /dev/shm; return whether the system allows it.

    Call it before there are threads, so before NumPy is imported. A child tries it first, because
    a partial success cannot be undone.
    """
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if _isolate() else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0 and _isolate()


def _isolate() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"synk", b"/dev/shm", b"tmpfs", 0, b"size=64m,mode=1777") == 0)


class Batch:
    """Programs one after the other, with the same zygote."""

    def __init__(self, world: Any, alone: bool, given: argparse.Namespace) -> None:
        self.world = world
        self.alone = alone
        self.verbose = given.verbose
        self.sabotage = given.sabotage
        self.again = " --common" if given.common else ""
        self.steps = 0
        self.processes = 0

    def run(
        self,
        seed: int,
        steps: Optional[list[Any]] = None,
        quiet: bool = False,
        found: Optional[str] = None,
    ) -> Any:
        """Run a program. Return None, or the kind of failure, a report and the steps."""
        from run import AFTER, Run

        log = print if self.verbose and not quiet else (lambda _: None)
        run = Run(seed, self.world, self.alone, log, self.sabotage)
        failure = None
        try:
            run.run(steps)
        except Exception as error:
            steps = [step for step in run.steps if step.who != AFTER]
            failure = type(error).__name__, self.report(seed, run, error, found), steps
        finally:
            self.world.clear()
            printed = self.world.printed()
            if failure is not None:
                self.sweep(run)
        if failure is not None and printed:
            failure = failure[0], f"{failure[1]}\noutput of the processes:\n{printed}", failure[2]
        self.steps += len(run.steps)
        self.processes += len(run.model.actors)
        return failure

    def report(self, seed: int, run: Any, error: Exception, found: Optional[str]) -> str:
        where = "" if isinstance(error, AssertionError) else traceback.format_exc()
        program = "\n".join(run.lines)
        again = f" --found {found}{self.again}" if found else self.again
        return (
            f"seed {seed}, {len(run.steps)} steps:\n{program}\n{where}"
            f"{type(error).__name__} in step {len(run.steps)}: {error}\n"
            f"again: python {os.path.relpath(__file__)} --seed {seed}{again} --verbose"
        )

    def sweep(self, run: Any) -> None:
        """Remove what a failed program has left, before the next one."""
        for name in run.files_left():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join("/dev/shm", name))

    def shrink(self, seed: int, failure: Any) -> str:
        """Leave out steps while the program fails in the same way. Return the last report."""
        kind, report, steps = failure
        size = len(steps) // 2
        while size:
            start = 0
            while start < len(steps):
                failure = self.run(seed, steps[:start] + steps[start + size :], quiet=True)
                if failure is not None and failure[0] == kind and len(failure[2]) < len(steps):
                    _, report, steps = failure
                else:
                    start += size
            size //= 2
        return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Random programs of shared arrays.")
    parser.add_argument("--seed", type=int, help="of the first program; by default a fresh one")
    parser.add_argument("--count", type=int, default=1, help="how many programs")
    parser.add_argument("--seconds", type=float, help="run for so long instead")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds to wait for a process")
    parser.add_argument("--keep-going", action="store_true", help="after a failure, too")
    parser.add_argument("--shrink", action="store_true", help="look for a shorter program")
    parser.add_argument("--verbose", action="store_true", help="print each step as it is done")
    parser.add_argument("--common", action="store_true", help="use the system's /dev/shm")
    parser.add_argument("--found", nargs="+", help="run the programs of these names in found.py")
    parser.add_argument("--sabotage", default="", help="a fault that the checks must report")
    given = parser.parse_args()
    alone = not given.common and isolate()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from found import PROGRAMS
    from world import World

    found = given.found or [None]
    count = max(given.count, len(found))
    first = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    begin = time.monotonic()
    world = World(given.limit)
    batch = Batch(world, alone, given)
    done = failed = 0
    try:
        while done < count if given.seconds is None else time.monotonic() - begin < given.seconds:
            name = found[done % len(found)]
            steps = None
            if name:
                print(name, flush=True)  # before it can hang
                steps = PROGRAMS[name]()
            failure = batch.run(first + done, steps, found=name)
            done += 1
            if failure is not None:
                failed += 1
                print(failure[1], flush=True)
                if given.shrink:
                    print(f"shorter:\n{batch.shrink(first + done - 1, failure)}", flush=True)
                if not given.keep_going:
                    break
    finally:
        world.stop()
    print(
        f"seeds {first} to {first + done - 1}: {done} programs, {batch.steps} steps, "
        f"{batch.processes} processes, {failed} failed, "
        f"{'own' if alone else 'common'} /dev/shm, {time.monotonic() - begin:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
