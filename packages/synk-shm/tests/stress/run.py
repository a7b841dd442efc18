"""Run one program: each step in the processes and in the model, and nothing left at the end."""

from __future__ import annotations

import gc
import os
import time
from typing import Any, Callable, Optional

import values
from life import DIED, OK, Wrong
from model import Model
from program import Generator, Step
from world import FOLDER, KILLED, Crash, Hang, World, look

TOO_LONG_S = 120
AFTER = "after"  # the process that starts when all others have ended
SETTLE_S = 10.0  # for helpers of multiprocessing, which end after all others
SPOILED_STEP = 8


class Run:
    """A program: its steps so far, its model, and its processes."""

    def __init__(
        self, seed: int, world: World, alone: bool, log: Callable[[str], None], sabotage: str = ""
    ) -> None:
        gc.collect()
        self.model = Model(look, alone)
        self.generator = Generator(seed, self.model)
        self.world = world
        self.alone = alone
        self.log = log
        self.sabotage = sabotage
        if sabotage:  # the fault must be the only cause of a failure
            self.generator.mortality, self.generator.ending = 0, "exit"
        self.files = world.open_files()
        self.steps: list[Step] = []
        self.lines: list[str] = []

    def run(self, steps: Optional[list[Step]] = None) -> None:
        """Run to the end: the generated steps, or those of `steps` that are still possible."""
        deadline = time.monotonic() + TOO_LONG_S
        for step in self.generated() if steps is None else self.chosen(steps):
            if time.monotonic() > deadline:
                raise Hang(f"the program was not finished after {TOO_LONG_S} s")
            self.do(step)
            self.spoil()
        self.finish()

    def generated(self) -> Any:
        step: Optional[Step] = self.generator.first()
        while step is not None:
            yield step
            step = self.generator.next()

    def chosen(self, steps: list[Step]) -> Any:
        yield from (step for step in steps if self.generator.is_possible(step))
        self.generator.ending = "exit"
        self.generator.mortality = 0
        yield from iter(self.generator.end, None)

    def do(self, step: Step) -> None:
        """Run a step in the processes and in the model."""
        self.steps.append(step)
        self.lines.append(f"{len(self.steps):4}  {step}")
        if step.op == "root":
            self.model.root(step.who, **step.arguments)
            self.world.root(step.who, **step.arguments)
            self.note(OK)
            return
        command = getattr(self.model, step.op)(step.who, **step.arguments)
        allowed = next(command)
        outcome, result = getattr(self, f"do_{step.op}", self.ask)(step)
        self.note(outcome if outcome in (OK, DIED) else f"{outcome}: {result}"[:200])
        if outcome not in allowed and not (outcome == DIED and step.fuse):
            expected = " or ".join(sorted(allowed))
            raise Wrong(f"{outcome} ({result}), expected {expected}")
        try:
            command.send((outcome, result))
        except StopIteration:
            pass
        if step.fuse and step.op != "exit":
            self.model.gone(self.model.actors[step.who], "kill")
        self.model.check_names()

    def note(self, outcome: str) -> None:
        self.lines[-1] += f"  -> {outcome}"
        self.log(self.lines[-1])

    # how steps are run: most are a command and its reply

    def ask(self, step: Step, **arguments: Any) -> tuple[str, Any]:
        """Send the command. A process with a fuse is killed during it or just after."""
        op = "attach" if step.op == "attach_name" else step.op
        self.world.send(step.who, op, arguments or step.arguments, step.fuse)
        return self.answer(step)

    def answer(self, step: Step) -> tuple[str, Any]:
        reply = self.world.receive(step.who)
        if step.fuse or reply is None:
            self.world.wait(step.who)
            code = self.world.reap(step.who)
            if not step.fuse or code not in (KILLED, None):
                raise Crash(f"{step.who} died, exit code {code}")
            if reply is None:
                return DIED, None
        outcome, result, message = reply
        return outcome, (message, result) if message else result

    def do_handle(self, step: Step) -> tuple[str, Any]:
        return self.ask(step, var=step.arguments["var"])

    do_send = do_handle

    def do_attach(self, step: Step) -> tuple[str, Any]:
        var, readonly = step.arguments["var"], step.arguments["readonly"]
        if step.op == "attach_name":
            return self.ask(step, var=var, address=step.arguments["name"], readonly=readonly)
        source = self.model.addresses[step.arguments["source"]].value
        return self.ask(step, var=var, address=source, readonly=readonly)

    do_attach_name = do_attach

    def do_recv(self, step: Step) -> tuple[str, Any]:
        data = self.model.messages[step.arguments["message"]].data
        self.world.send(step.who, "recv", {"var": step.arguments["var"]}, max(step.fuse, 0))
        self.world.deliver(step.who, data, step.fuse)
        return self.answer(step)

    def do_fork(self, step: Step) -> tuple[str, Any]:
        reply = self.ask(step)
        if reply[0] == OK:
            self.world.accept(step.arguments["name"], step.who)
        return reply

    do_start = do_fork

    def do_exit(self, step: Step) -> tuple[str, Any]:
        actors = self.model.actors.values()
        daemons = [a.name for a in actors if a.alive and a.daemon and a.parent.name == step.who]
        if step.arguments["how"] == "hard":
            daemons = []  # they are not terminated
        self.world.send(step.who, step.op, step.arguments, step.fuse)
        self.world.wait(step.who)
        code = self.world.reap(step.who)
        for name in daemons:
            self.world.wait(name)
            self.world.reap(name)
        if step.fuse and code in (KILLED, None):
            return DIED, None
        return (OK, None) if code in (0, None) else (f"exit code {code}", None)

    def do_kill(self, step: Step) -> tuple[str, Any]:
        self.world.kill(step.who)
        code = self.world.reap(step.who)
        return (OK, None) if code in (KILLED, None) else (f"exit code {code}", None)

    def do_kill_group(self, step: Step) -> tuple[str, Any]:
        actors = self.model.actors.values()
        self.world.kill_group([one.name for one in actors if one.alive and one.home == step.who])
        return OK, None

    def do_leave_together(self, step: Step) -> tuple[str, Any]:
        ends: dict[str, str] = step.arguments["ends"]
        for name, how in ends.items():
            self.world.send(name, "exit", {"how": how})
        for name in ends:
            self.world.wait(name)
        codes = {name: self.world.reap(name) for name in ends}
        daemons = {name for name in ends if self.model.actors[name].daemon}
        wrong = {n: c for n, c in codes.items() if c not in (0, None) and n not in daemons}
        return (OK, None) if not wrong else (f"exit codes {wrong}", None)

    def do_storm(self, step: Step) -> tuple[str, Any]:
        victim = step.arguments["victim"]
        sources = [self.model.addresses[name] for name in step.arguments["sources"]]
        known = [(one.value, values.raw(one.array)) for one in sources]
        names = [step.who, *step.arguments["others"]]
        for number, name in enumerate(names):
            self.world.send(name, "storm", {"rounds": 12, "known": known, "seed": number})
        if victim is not None:
            self.world.kill(victim)
        answers = {name: self.world.receive(name) for name in names if name != victim}
        if victim is not None:
            self.world.reap(victim)  # its parent can reap it now
        wrong = {
            name: reply for name, reply in answers.items() if not reply or reply[:2] != (OK, 0)
        }
        return (OK, None) if not wrong else (f"storm: {wrong}", None)

    def spoil(self) -> None:
        """Let a process commit the fault of ``--sabotage`` once: a check must report it."""
        if not self.sabotage or len(self.steps) < SPOILED_STEP:
            return
        for actor in self.model.actors.values():
            for var, held in actor.vars.items():
                mapping = held.mapping
                if mapping.owner and mapping.segment.backend == "shm" and held.array.size:
                    kind, self.sabotage = self.sabotage, ""
                    self.lines.append(f"      {actor.name} commits a fault: {kind}")
                    self.world.send(actor.name, "sabotage", {"kind": kind, "var": var})
                    self.answer(Step("sabotage", actor.name))
                    self.do(Step("read", actor.name, {"var": var}))
                    self.do(Step("audit", actor.name))
                    return

    # the end

    def finish(self) -> None:
        """Check that nothing is left, at the latest after another process has made an array."""
        self.expect_nothing("processes", self.world.settle(SETTLE_S))
        self.expire()
        self.do(Step("root", AFTER, {"how": "root"}))
        if self.generator.rng.random() < 0.5:
            self.do(Step("cleanup", AFTER))
        else:
            options = {"order": "C"}
            arguments = {"how": "zeros", "shape": (2,), "dtype": "int", "seed": 0}
            self.do(Step("create", AFTER, {"var": "last", **arguments, "options": options}))
        self.do(Step("exit", AFTER, {"how": "clean"}))
        self.expect_nothing("files in shared memory", self.files_left())
        self.expect_nothing("processes", self.world.settle(SETTLE_S))
        self.expect_nothing("lines on stderr", self.world.printed())
        gc.collect()
        files = self.world.open_files()
        if files != self.files:
            raise Wrong(f"open files of the driver and of its helper: {self.files}, now {files}")

    def expect_nothing(self, what: str, found: Any) -> None:
        if found:
            raise Wrong(f"{what} are left: {found}")

    def expire(self) -> None:
        """End the minute that messages of children may stay, if it may have begun."""
        if self.model.graced:
            families = self.families()
            for name in os.listdir(FOLDER):
                if name.endswith(".lock") and (self.alone or name.split(".")[-2] in families):
                    os.utime(os.path.join(FOLDER, name), (0, 0))

    def families(self) -> set[str]:
        """Return the families of this program, by their names in shared memory."""
        return {entry.name.split(".")[1] for _, entry in self.model.entries() if not entry.user}

    def files_left(self) -> list[str]:
        """Return what this program has left; in a private /dev/shm, every file."""
        left = sorted(os.listdir(FOLDER))
        if self.alone:
            return left
        inodes = {segment.inode for segment in self.model.segments}
        given = {entry.name[1:] for _, entry in self.model.entries() if entry.user}
        ours = {name[1:] for name, inode in look().items() if inode in inodes}
        ours |= {name for name in left if self.families() & set(name.split("."))}
        return sorted(ours | given & set(left))
