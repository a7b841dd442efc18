"""Generate random programs: choose the next step, given the state of the model.

A step is a command, the process that runs it, and the arguments. `fuse` kills the process in the
middle: at its n-th function call from then on, or, if negative, from outside after that many
microseconds.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field
from typing import Any, Optional

import values
from model import Model
from state import THERE, Actor

ARRAYS, PROCESSES, SEGMENTS = 6, 6, 14  # at most: arrays of a process, processes, segments
# Commands that may be killed in the middle: the model allows for both outcomes.
MORTAL = {
    *("create", "create_too_big", "view", "read", "write", "resize", "close", "unlink"),
    *("unlink_name", "drop", "lock", "unlock", "handle", "attach", "attach_name"),
    *("send", "recv", "list", "cleanup", "exit"),
}
ON_ARRAYS = {
    *("view", "read", "write", "resize", "close", "unlink", "lock", "unlock", "handle", "send"),
}
PLAIN = {"list", "cleanup", "audit"}  # without arguments
WEIGHTS = {
    "create": 12, "create_too_big": 1, "view": 5, "read": 12, "write": 9, "resize": 8,
    "close": 2, "unlink": 1.5, "unlink_name": 1, "drop": 8, "lock": 3, "unlock": 2, "handle": 7,
    "attach": 10, "attach_name": 5, "send": 8, "recv": 8, "fork": 3, "start": 4, "unrelated": 2,
    "exit": 3, "kill": 2.5, "list": 1.5, "cleanup": 1, "audit": 2, "storm": 0.7,
}  # fmt: skip


@dataclass
class Step:
    """One line of a program."""

    op: str
    who: str
    arguments: dict[str, Any] = field(default_factory=dict)
    fuse: int = 0

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        end = f"   killed: {self.fuse}" if self.fuse else ""
        return f"{self.who}.{self.op}({inner}){end}"


class Generator:
    """Generate one program, step by step, from a seed."""

    def __init__(self, seed: int, model: Model) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self.count = 0
        self.steps_left = self.rng.randint(15, 70)
        # Starting an interpreter takes longer than all the rest of a program.
        self.slow = self.rng.choice([0] * 10 + [1, 2])
        self.mortality = self.rng.choice([0, 0, 0.01, 0.03, 0.1])
        # Each program has weights of its own, so that rare commands also meet often.
        self.weights = [w * self.rng.choice([0.2, 1, 1, 3]) for w in WEIGHTS.values()]
        self.named = self.rng.choice([0.1, 0.4, 0.9])
        self.nameless = self.rng.choice([0.05, 0.25, 0.6])
        endings = ["exit", "exit", "exit", "mixed", "together", "together", "kill", "group"]
        self.ending = self.rng.choice(endings)
        # Names are few, so that they are given again; other drivers may run, too.
        salt = "mine" if model.alone else secrets.token_hex(6)
        self.names = [f"{salt}.{letter}" for letter in "abc"]

    def first(self) -> Step:
        return self.new_root(exec_=self.slow > 0 and self.rng.random() < 0.3)

    def next(self) -> Optional[Step]:
        """Return a step that is possible now; None when no process is left at the end."""
        self.steps_left -= 1
        if self.steps_left < 0:
            return self.end()
        for _ in range(100):
            op = self.rng.choices(list(WEIGHTS), self.weights)[0]
            if op == "unrelated":
                if len(self.alive()) < PROCESSES:
                    return self.new_root(exec_=self.slow > 0 and self.rng.random() < 0.2)
                continue
            actors = self.alive()
            if not actors:
                return self.new_root(exec_=False)
            actor = self.rng.choice(actors)
            arguments = {} if op in PLAIN else getattr(self, op)(actor)
            if arguments is not None:
                return self.finish(Step(op, actor.name, arguments))
        return self.end()

    def end(self) -> Optional[Step]:
        """Return the next step of the end: all exit one by one, or at once, or are killed."""
        rng, actors = self.rng, self.alive()
        if not actors:
            return None
        if self.ending == "together":
            how = rng.choice(["clean", "held", "mixed"])
            ends = {actor.name: how if how != "mixed" else self.any_end() for actor in actors}
            return Step("leave_together", "all", {"ends": ends})
        actor = rng.choice(actors)
        if self.ending == "group":
            return Step("kill_group", actor.home)
        if self.ending == "kill" or (self.ending == "mixed" and rng.random() < 0.4):
            return Step("kill", actor.name)
        ready = [one for one in actors if not self.is_waiting(one)]
        return self.finish(Step("exit", rng.choice(ready).name, {"how": self.any_end()}))

    # arguments of each command, None if it is not possible in this process

    def create(self, actor: Actor) -> Optional[dict[str, Any]]:
        if self.full(actor) or len(self.model.segments) >= SEGMENTS:
            return None
        rng = self.rng
        shape = tuple(rng.choice([0, 1, 2, 3, 4, 5]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3])))
        if shape and rng.random() < 0.1:
            shape = (rng.randint(500, 3000), *shape[1:])
        how = rng.choice(["empty", "zeros", "share", "share"])
        options: dict[str, Any] = {"order": rng.choice("CCCF")}
        if rng.random() < self.nameless:
            options["backend"] = "memfd"
        elif rng.random() < self.named:
            options["name"] = rng.choice(self.names)
            if options["name"] in self.model.retired:
                return None
        if how != "share" and shape and options["order"] == "C" and rng.random() < 0.7:
            options["capacity"] = shape[0] + rng.choice([0, 3, 10, 2000])
        dtype, seed = rng.choice(list(values.DTYPES)), rng.randrange(100)
        found = {"var": self.new("v"), "how": how, "shape": shape, "dtype": dtype, "seed": seed}
        return {**found, "options": options}

    def create_too_big(self, _: Actor) -> dict[str, Any]:
        return {"backend": self.rng.choice(["shm", "memfd"])}

    def view(self, actor: Actor) -> Optional[dict[str, Any]]:
        var = self.var(actor)
        if var is None or self.full(actor):
            return None
        spec = values.random_view(actor.vars[var].array, self.rng)
        return {"var": var, "new": self.new("v"), "spec": spec}

    def write(self, actor: Actor) -> Optional[dict[str, Any]]:
        found = self.on_array(actor)
        return None if found is None else {**found, "seed": self.rng.randrange(100)}

    def resize(self, actor: Actor) -> Optional[dict[str, Any]]:
        var = self.var(actor, wanted=lambda held: held.mapping.owner)
        if var is None or self.full(actor):
            return None
        segment = actor.vars[var].mapping.segment
        if segment.vague or len(self.model.segments) >= SEGMENTS:
            return None
        length = (segment.shape or (0,))[0]
        room = segment.capacity // max(1, segment.row_bytes()) if segment.row_bytes() else 5
        choices = [0, length // 2, length, length + 1, room, room + 1, 2 * room + 3]
        length = min(self.rng.choice(choices), 6000)
        return {"var": var, "new": self.new("v"), "length": length}

    def close(self, actor: Actor) -> Optional[dict[str, Any]]:
        found = self.on_array(actor)
        return None if actor.locks else found

    def unlink_name(self, _: Actor) -> dict[str, Any]:
        return {"name": self.rng.choice(self.names)}

    def drop(self, actor: Actor) -> Optional[dict[str, Any]]:
        free = [var for var in actor.vars if var not in actor.locks]
        if not free:
            return None
        count = self.rng.choice([1, 1, 1, 2, len(free)])
        return {"names": self.rng.sample(free, min(count, len(free)))}

    def lock(self, actor: Actor) -> Optional[dict[str, Any]]:
        found = self.on_array(actor)
        return None if found is None or found["var"] in actor.locks else found

    def unlock(self, actor: Actor) -> Optional[dict[str, Any]]:
        return {"var": self.rng.choice(list(actor.locks))} if actor.locks else None

    def handle(self, actor: Actor) -> Optional[dict[str, Any]]:
        return self.on_array(actor, new="h")

    def attach(self, actor: Actor) -> Optional[dict[str, Any]]:
        known = list(self.model.addresses)[-8:]
        if not known or self.full(actor):
            return None
        readonly = self.rng.random() < 0.3
        return {"var": self.new("v"), "source": self.rng.choice(known), "readonly": readonly}

    def attach_name(self, actor: Actor) -> Optional[dict[str, Any]]:
        name = self.rng.choice(self.names)
        vague = {e.name for s, e in self.model.entries() if e.user and s.vague}
        if self.full(actor) or name in self.model.retired or f"/synk.u.{name}" in vague:
            return None
        return {"var": self.new("v"), "name": name, "readonly": self.rng.random() < 0.3}

    def send(self, actor: Actor) -> Optional[dict[str, Any]]:
        return self.on_array(actor, new="m")

    def recv(self, actor: Actor) -> Optional[dict[str, Any]]:
        # A second delivery is rare: no pipe does it, but pickles can be kept.
        again = self.rng.random() < 0.1
        known = [n for n, m in self.model.messages.items() if again or not m.deliveries]
        if not known or self.full(actor):
            return None
        return {"var": self.new("v"), "message": self.rng.choice(known)}

    def fork(self, actor: Actor) -> Optional[dict[str, Any]]:
        # Python fails at the exit of a raw fork of a process with children of multiprocessing:
        # it joins children that are not its own.
        if len(self.alive()) >= PROCESSES or self.children(actor):
            return None
        return {"name": self.new("p")}

    def start(self, actor: Actor) -> Optional[dict[str, Any]]:
        if len(self.alive()) >= PROCESSES or actor.daemon or self.in_daemon(actor):
            return None
        method = "fork"
        if self.slow and self.rng.random() < 0.7:
            self.slow -= 1
            method = self.rng.choice(["spawn", "spawn", "forkserver"])
            if method == "forkserver" and actor.how not in ("root", "exec"):
                method = "spawn"  # Python's forkserver cannot be used through a fork
        names: list[str] = []
        seen: dict[Any, bool] = {}
        for var, held in actor.vars.items() if method != "fork" else ():
            kind = (held.mapping.segment, held.mapping.readonly)
            sendable = self.model.reachable(held.mapping) == {"ok"}
            if sendable and seen.setdefault(*kind) == kind[1] and self.rng.random() < 0.6:
                names.append(var)
        daemon = self.rng.random() < 0.2
        return {"name": self.new("p"), "method": method, "daemon": daemon, "names": names}

    def exit(self, actor: Actor) -> Optional[dict[str, Any]]:
        if len(self.alive()) == 1 and self.rng.random() < 0.7:
            return None
        return None if self.is_waiting(actor) else {"how": self.any_end()}

    def kill(self, _: Actor) -> Optional[dict[str, Any]]:
        if not self.mortality or (len(self.alive()) == 1 and self.rng.random() < 0.7):
            return None
        return {}

    def storm(self, actor: Actor) -> Optional[dict[str, Any]]:
        others = [one.name for one in self.alive() if one is not actor]
        if not others:
            return None
        chosen = self.rng.sample(others, self.rng.randint(1, len(others)))
        victim = self.rng.choice(chosen) if self.rng.random() < 3 * self.mortality else None
        return {"others": chosen, "victim": victim, "sources": self.lasting(victim)[-3:]}

    # helpers

    def new(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def new_root(self, exec_: bool) -> Step:
        return Step("root", self.new("p"), {"how": "exec" if exec_ else "root"})

    def finish(self, step: Step) -> Step:
        """Add a fuse to some steps."""
        rng = self.rng
        if step.op in MORTAL and rng.random() < self.mortality:
            if step.op == "exit" and self.children(self.model.actors[step.who]):
                return step  # whether it terminated its daemons is unknown
            inside = [rng.randint(1, 40), rng.randint(1, 150), rng.randint(1, 400)]
            step.fuse = rng.choice([*inside, -rng.randint(1, 600)])
        return step

    def lasting(self, victim: Optional[str]) -> list[str]:
        """Return the handles that can be attached also after that process is killed."""
        found = []
        for name, one in self.model.addresses.items():
            segment = one.segment
            entry = segment.entries.get(one.value.name)
            holders = [one.source] if entry is None else entry.owners
            there = self.model.state(segment, one.value.name, one.source) == THERE
            if there and any(h.actor.name != victim for h in holders):
                if segment.known_bytes(one.array).all():
                    found.append(name)
        return found

    def is_waiting(self, actor: Actor) -> bool:
        """Return whether a process would wait for its children at its exit."""
        # It waits for the forks of daemons, which inherit their end of a pipe.
        return any(
            not child.daemon or any(one.parent is child for one in self.alive())
            for child in self.children(actor)
        )

    def is_possible(self, step: Step) -> bool:
        """Return whether a step of another program is possible in this one."""
        model, arguments = self.model, step.arguments
        if step.op in ("root", "kill_group", "leave_together"):
            return step.op == "root"
        actor = model.actors.get(step.who)
        if actor is None or not actor.alive:
            return False
        needed = {arguments[key] for key in ("var",) if key in arguments and step.op in ON_ARRAYS}
        needed |= set(arguments.get("names", ()))
        others = [model.actors.get(name) for name in arguments.get("others", ())]
        free = step.op != "drop" or not needed & set(actor.locks)
        return (
            needed <= set(actor.vars)
            and free
            and all(other is not None and other.alive for other in others)
            and set(arguments.get("sources", ())) <= set(self.lasting(arguments.get("victim")))
            and arguments.get("source", None) in {None, *model.addresses}
            and arguments.get("message", None) in {None, *model.messages}
            and not (step.op == "unlock" and arguments["var"] not in actor.locks)
            and not (step.op == "fork" and self.children(actor))
            and not (step.op == "exit" and self.is_waiting(actor))
        )

    def any_end(self) -> str:
        return self.rng.choice(["clean", "clean", "held", "held", "hard"])

    def alive(self) -> list[Actor]:
        return [actor for actor in self.model.actors.values() if actor.alive]

    def children(self, actor: Actor) -> list[Actor]:
        """Return the children of multiprocessing that a process has to wait for."""
        found = self.model.actors.values()
        return [one for one in found if one.parent is actor and one.how != "os.fork" and one.alive]

    def in_daemon(self, actor: Optional[Actor]) -> bool:
        """Return whether multiprocessing allows no children here, as in a daemon."""
        while actor is not None and actor.how == "os.fork":
            actor = actor.parent
        return actor is not None and actor.daemon

    def full(self, actor: Actor) -> bool:
        return len(actor.vars) >= ARRAYS

    def var(self, actor: Actor, wanted: Any = None) -> Optional[str]:
        """Return a random array of a process, more often one that is `wanted`."""
        found = list(actor.vars)
        if wanted is not None and self.rng.random() < 0.8:
            found = [name for name, held in actor.vars.items() if wanted(held)]
        return self.rng.choice(found) if found else None

    def on_array(self, actor: Actor, new: str = "") -> Optional[dict[str, Any]]:
        var = self.var(actor)
        if var is None:
            return None
        return {"var": var, "new": self.new(new)} if new else {"var": var}

    read = unlink = on_array
