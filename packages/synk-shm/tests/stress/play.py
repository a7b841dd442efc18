"""One program at a time: each step in the world and in the model, and nothing left at the end."""

from __future__ import annotations

import gc
import os
import time
from typing import Any, Callable, Optional

import values
from life import DIED, OK, Wrong
from model import Model
from program import Author, Step
from world import FOLDER, KILLED, Crash, Hang, World, look

TOO_LONG_S = 120
AFTER = "after"  # the process that looks when all others have ended
SETTLE_S = 10.0  # for helpers of multiprocessing, which end when they see that all are gone
SPOILED_STEP = 8


class Play:
    """A program: its steps so far, the model of it, and the real thing."""

    def __init__(
        self, seed: int, world: World, alone: bool, say: Callable[[str], None], sabotage: str = ""
    ) -> None:
        gc.collect()
        self.model = Model(look, alone)
        self.author = Author(seed, self.model)
        self.world = world
        self.alone = alone
        self.say = say
        self.sabotage = sabotage
        if sabotage:  # with nothing else that could explain what follows
            self.author.mortality, self.author.ending = 0, "exit"
        self.files = world.open_files()
        self.steps: list[Step] = []
        self.lines: list[str] = []

    def run(self, steps: Optional[list[Step]] = None) -> None:
        """Run to the end: what the author writes, or those of these steps that still can be."""
        deadline = time.monotonic() + TOO_LONG_S
        for step in self.written() if steps is None else self.chosen(steps):
            if time.monotonic() > deadline:
                raise Hang(f"the program was not finished after {TOO_LONG_S} s")
            self.do(step)
            self.spoil()
        self.finish()

    def written(self) -> Any:
        step: Optional[Step] = self.author.first()
        while step is not None:
            yield step
            step = self.author.next()

    def chosen(self, steps: list[Step]) -> Any:
        yield from (step for step in steps if self.author.is_possible(step))
        self.author.ending = "exit"
        self.author.mortality = 0
        yield from iter(self.author.end, None)

    def do(self, step: Step) -> None:
        """One step, in the world and in the model."""
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
        self.say(self.lines[-1])

    # how steps are done: most are a question and an answer

    def ask(self, step: Step, **arguments: Any) -> tuple[str, Any]:
        """Let the process do it. With a fuse it ends, during the command or just after."""
        op = "attach" if step.op == "attach_name" else step.op
        self.world.tell(step.who, op, arguments or step.arguments, step.fuse)
        return self.answer(step)

    def answer(self, step: Step) -> tuple[str, Any]:
        heard = self.world.hear(step.who)
        if step.fuse or heard is None:
            self.world.wait(step.who)
            code = self.world.bury(step.who)
            if not step.fuse or code not in (KILLED, None):
                raise Crash(f"{step.who} died, exit code {code}")
            if heard is None:
                return DIED, None
        outcome, result, message = heard
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
        self.world.tell(step.who, "recv", {"var": step.arguments["var"]}, max(step.fuse, 0))
        self.world.deliver(step.who, data, step.fuse)
        return self.answer(step)

    def do_fork(self, step: Step) -> tuple[str, Any]:
        heard = self.ask(step)
        if heard[0] == OK:
            self.world.welcome(step.arguments["name"], step.who)
        return heard

    do_start = do_fork

    def do_exit(self, step: Step) -> tuple[str, Any]:
        actors = self.model.actors.values()
        daemons = [a.name for a in actors if a.alive and a.daemon and a.parent.name == step.who]
        if step.arguments["how"] == "hard":
            daemons = []  # nobody terminates them
        self.world.tell(step.who, step.op, step.arguments, step.fuse)
        self.world.wait(step.who)
        code = self.world.bury(step.who)
        for name in daemons:
            self.world.wait(name)
            self.world.bury(name)
        if step.fuse and code in (KILLED, None):
            return DIED, None
        return (OK, None) if code in (0, None) else (f"exit code {code}", None)

    def do_kill(self, step: Step) -> tuple[str, Any]:
        self.world.kill(step.who)
        code = self.world.bury(step.who)
        return (OK, None) if code in (KILLED, None) else (f"exit code {code}", None)

    def do_kill_group(self, step: Step) -> tuple[str, Any]:
        actors = self.model.actors.values()
        self.world.kill_group([one.name for one in actors if one.alive and one.home == step.who])
        return OK, None

    def do_leave_together(self, step: Step) -> tuple[str, Any]:
        ends: dict[str, str] = step.arguments["ends"]
        for name, how in ends.items():
            self.world.tell(name, "exit", {"how": how})
        for name in ends:
            self.world.wait(name)
        codes = {name: self.world.bury(name) for name in ends}
        daemons = {name for name in ends if self.model.actors[name].daemon}
        wrong = {n: c for n, c in codes.items() if c not in (0, None) and n not in daemons}
        return (OK, None) if not wrong else (f"exit codes {wrong}", None)

    def do_storm(self, step: Step) -> tuple[str, Any]:
        victim = step.arguments["victim"]
        sources = [self.model.addresses[name] for name in step.arguments["sources"]]
        known = [(one.value, values.raw(one.array)) for one in sources]
        names = [step.who, *step.arguments["others"]]
        for number, name in enumerate(names):
            self.world.tell(name, "storm", {"rounds": 12, "known": known, "seed": number})
        if victim is not None:
            self.world.kill(victim)
        answers = {name: self.world.hear(name) for name in names if name != victim}
        if victim is not None:
            self.world.bury(victim)  # now that its parent listens again
        wrong = {name: said for name, said in answers.items() if not said or said[:2] != (OK, 0)}
        return (OK, None) if not wrong else (f"storm: {wrong}", None)

    def spoil(self) -> None:
        """Let a process do what must not be, if this is asked for: it must be noticed."""
        if not self.sabotage or len(self.steps) < SPOILED_STEP:
            return
        for actor in self.model.actors.values():
            for var, held in actor.vars.items():
                mapping = held.mapping
                if mapping.owner and mapping.segment.backend == "shm" and held.array.size:
                    kind, self.sabotage = self.sabotage, ""
                    self.lines.append(f"      {actor.name} is told to do wrong: {kind}")
                    self.world.tell(actor.name, "sabotage", {"kind": kind, "var": var})
                    self.answer(Step("sabotage", actor.name))
                    self.do(Step("read", actor.name, {"var": var}))
                    self.do(Step("audit", actor.name))
                    return

    # the end

    def finish(self) -> None:
        """Nothing is left, at the latest when another process has looked."""
        self.expect_nothing("processes", self.world.settle(SETTLE_S))
        self.expire()
        self.do(Step("root", AFTER, {"how": "root"}))
        if self.author.rng.random() < 0.5:
            self.do(Step("cleanup", AFTER))
        else:
            options = {"order": "C"}
            arguments = {"how": "zeros", "shape": (2,), "dtype": "int", "seed": 0}
            self.do(Step("create", AFTER, {"var": "last", **arguments, "options": options}))
        self.do(Step("exit", AFTER, {"how": "clean"}))
        self.expect_nothing("files in shared memory", self.files_left())
        self.expect_nothing("processes", self.world.settle(SETTLE_S))
        self.expect_nothing("words on stderr", self.world.said())
        gc.collect()
        files = self.world.open_files()
        if files != self.files:
            raise Wrong(f"open files of the driver and of its helper: {self.files}, now {files}")

    def expect_nothing(self, what: str, found: Any) -> None:
        if found:
            raise Wrong(f"{what} are left: {found}")

    def expire(self) -> None:
        """End the minute of grace for messages of children, where one may have begun."""
        if self.model.graced:
            families = self.families()
            for name in os.listdir(FOLDER):
                if name.endswith(".lock") and (self.alone or name.split(".")[-2] in families):
                    os.utime(os.path.join(FOLDER, name), (0, 0))

    def families(self) -> set[str]:
        """The families of this program, as they call themselves."""
        return {entry.name.split(".")[1] for _, entry in self.model.entries() if not entry.user}

    def files_left(self) -> list[str]:
        """What this program has left; in a folder of one's own, anything at all."""
        left = sorted(os.listdir(FOLDER))
        if self.alone:
            return left
        inodes = {segment.inode for segment in self.model.segments}
        given = {entry.name[1:] for _, entry in self.model.entries() if entry.user}
        ours = {name[1:] for name, inode in look().items() if inode in inodes}
        ours |= {name for name in left if self.families() & set(name.split("."))}
        return sorted(ours | given & set(left))
