"""Random programs of shared arrays over 2 to 6 processes, checked against a model.

    python packages/synk-shm/tests/stress/driver.py --seed N [--count K] [--seconds S] [--verbose]

runs the programs with the seeds N, N+1, ...: each makes, attaches, passes, resizes, locks,
closes, unlinks and drops arrays in processes that are forked, spawned, exit and are killed
by SIGKILL, also in the middle of a command. One command runs at a time, so the model knows
what each must do: the exact outcome, every byte that is read, and every name in /dev/shm
after every step. At the end of a program no segment, no descriptor, no process and no word
on stderr is left. A program that fails is printed; its seed runs it again, and ``--shrink``
looks for a shorter one that fails too.

`program` writes the steps, `model` and `life` know what they must do (`state` is their
memory), `play` runs a program in the `world` of processes, each of which is an `actor` that
was forked from the warm `zygote` or by another one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import time
from typing import Any, Optional

from isolation import isolate


class Batch:
    """Programs one after the other, in the same warm world."""

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
        """Run a program. Returns None, or the kind of failure, a report and the steps."""
        from play import AFTER, Play

        say = print if self.verbose and not quiet else (lambda _: None)
        play = Play(seed, self.world, self.alone, say, self.sabotage)
        failure = None
        try:
            play.run(steps)
        except Exception as error:
            steps = [step for step in play.steps if step.who != AFTER]
            failure = type(error).__name__, self.report(seed, play, error, found), steps
        finally:
            self.world.clear()
            said = self.world.said()
            if failure is not None:
                self.sweep(play)
        if failure is not None and said:
            failure = failure[0], f"{failure[1]}\nwhat the processes wrote:\n{said}", failure[2]
        self.steps += len(play.steps)
        self.processes += len(play.model.actors)
        return failure

    def report(self, seed: int, play: Any, error: Exception, found: Optional[str]) -> str:
        import traceback

        where = "" if isinstance(error, AssertionError) else traceback.format_exc()
        program = "\n".join(play.lines)
        again = f" --found {found}{self.again}" if found else self.again
        return (
            f"seed {seed}, {len(play.steps)} steps:\n{program}\n{where}"
            f"{type(error).__name__} in step {len(play.steps)}: {error}\n"
            f"again: python {os.path.relpath(__file__)} --seed {seed}{again} --verbose"
        )

    def sweep(self, play: Any) -> None:
        """Remove what a failed program has left, for the sake of the next one."""
        for name in play.files_left():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join("/dev/shm", name))

    def shrink(self, seed: int, failure: Any) -> str:
        """Leave out steps for as long as it fails in the same way. Returns the last report."""
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
    parser.add_argument("--sabotage", default="", help="do wrong, to see that it is noticed")
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
                print(name, flush=True)  # whatever becomes of it
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
