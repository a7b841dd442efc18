"""Programs that failed once: found by random seeds, and shortened.

Each is a function that returns its steps; ``driver.py --found <name> ...`` runs them.
`every_moment_of_...` kill a process at one function call of a command after the other.
"""

from __future__ import annotations

import secrets
from typing import Any, Callable

from program import Step

SALT = secrets.token_hex(4)  # others may run this in the same /dev/shm
NAME = f"{SALT}.name"
PROGRAMS: dict[str, Callable[[], list[Step]]] = {}


def kept(program: Callable[[], list[Step]]) -> Callable[[], list[Step]]:
    PROGRAMS[program.__name__] = program
    return program


def root(who: str) -> Step:
    return Step("root", who, {"how": "root"})


def child(who: str, name: str) -> Step:
    return Step("start", who, {"name": name, "method": "fork", "daemon": False, "names": []})


def create(who: str, var: str, **options: Any) -> Step:
    arguments = {"var": var, "how": "share", "shape": (4, 3), "dtype": "int", "seed": 7}
    return Step("create", who, {**arguments, "options": {"order": "C", **options}})


def attach_name(who: str, var: str) -> Step:
    return Step("attach_name", who, {"var": var, "name": NAME, "readonly": False})


def on(op: str, who: str, var: str, **more: Any) -> Step:
    return Step(op, who, {"var": var, **more})


def drop(who: str, var: str) -> Step:
    return Step("drop", who, {"names": [var]})


def leave(who: str, how: str = "clean") -> Step:
    return Step("exit", who, {"how": how})


@kept
def parent_of_a_child_that_has_exited() -> list[Step]:
    """What a killed process leaves is removed at once, also if its child exited before."""
    return [root("p1"), create("p1", "v1"), child("p1", "p2"), leave("p2"), leave("p1", "hard")]


@kept
def lost_message_of_a_parent() -> list[Step]:
    """An unread message is removed with the last process, also if a child exited before."""
    made = [root("p1"), create("p1", "v1"), on("send", "p1", "v1", new="m1")]
    return [*made, child("p1", "p2"), leave("p2"), leave("p1")]


def given_again(*steps: Step) -> list[Step]:
    """Return a program that drops a name that p2 has attached, and gives it again."""
    first = [root("p1"), root("p2"), create("p1", "v1", name=NAME), attach_name("p2", "v2")]
    return [*first, drop("p1", "v1"), create("p1", "v3", name=NAME), *steps]


@kept
def send_by_a_name_given_again() -> list[Step]:
    """A message must not hold the other segment's memory."""
    return given_again(on("send", "p2", "v2", new="m1"), on("read", "p1", "v3"))


@kept
def lock_by_a_name_given_again() -> list[Step]:
    """The lock must not be that of another segment."""
    return given_again(on("lock", "p2", "v2"), on("lock", "p1", "v3"))


@kept
def unlink_by_a_name_given_again() -> list[Step]:
    return given_again(on("unlink", "p2", "v2"), attach_name("p2", "v4"))


def taken(*steps: Step) -> list[Step]:
    """Return a program in which p2 unlinks a name of p1, and gives it to its own array."""
    first = [root("p1"), root("p2"), create("p1", "v1", name=NAME)]
    unlink = Step("unlink_name", "p2", {"name": NAME})
    return [*first, unlink, create("p2", "v2", name=NAME), *steps, attach_name("p2", "v9")]


@kept
def drop_after_the_name_was_given_again() -> list[Step]:
    return taken(drop("p1", "v1"))


@kept
def close_after_the_name_was_given_again() -> list[Step]:
    return taken(on("close", "p1", "v1"))


@kept
def exit_after_the_name_was_given_again() -> list[Step]:
    return taken(leave("p1"))


@kept
def growth_after_the_name_was_given_again() -> list[Step]:
    """The new segment must not take the name, which is that of another segment now."""
    return taken(on("resize", "p1", "v1", new="v3", length=50))


@kept
def growth_of_an_unlinked_array() -> list[Step]:
    """An unlinked name does not come back."""
    first = [root("p1"), root("p2"), create("p1", "v1", name=NAME), attach_name("p2", "v2")]
    return [*first, on("unlink", "p2", "v2"), on("resize", "p1", "v1", new="v3", length=50)]


@kept
def sender_of_another_family() -> list[Step]:
    """The end of the sender's family takes its message, not the name that p1 gave."""
    first = [root("p1"), root("p2"), create("p1", "v1", name=NAME), attach_name("p2", "v2")]
    return [*first, on("send", "p2", "v2", new="m1"), leave("p2"), attach_name("p1", "v3")]


@kept
def list_of_a_message_of_another_family() -> list[Step]:
    """A segment belongs to the family of its maker, not to that of a message's sender."""
    first = [root("p1"), root("p2"), create("p1", "v1", name=NAME), attach_name("p2", "v2")]
    sent = on("send", "p2", "v2", new="m1")
    return [*first, sent, Step("list", "p1"), Step("list", "p2"), Step("kill", "p2")]


@kept
def fork_of_a_receiver() -> list[Step]:
    """A forked child may forward what its parent received, after the maker has ended."""
    first = [root("p0"), create("p0", "v0"), child("p0", "p1"), create("p1", "v1")]
    attach = Step("attach", "p0", {"var": "v2", "source": "h1", "readonly": False})
    known = [on("handle", "p1", "v1", new="h1"), attach]
    sent = [on("send", "p1", "v1", new="m1"), on("recv", "p0", "v3", message="m1"), leave("p1")]
    return [*first, *known, *sent, child("p0", "p2"), on("send", "p2", "v3", new="m2")]


@kept
def unlink_by_a_fork() -> list[Step]:
    """An unread message is a name, too, when the first one was removed with its owner."""
    first = [root("p1"), create("p1", "v1"), on("send", "p1", "v1", new="m1")]
    return [*first, Step("fork", "p1", {"name": "p2"}), leave("p1"), on("unlink", "p2", "v1")]


@kept
def number_of_a_closed_file() -> list[Step]:
    """A handle of memory without a name, whose file number is now that of a lock file."""
    first = [root("p1"), root("p2"), create("p2", "v0", name=NAME)]
    memory = [create("p1", "v1", backend="memfd"), create("p1", "v2", backend="memfd")]
    closed = [on("handle", "p1", "v2", new="h1"), on("unlink", "p1", "v1"), drop("p1", "v2")]
    attach = Step("attach", "p2", {"var": "v4", "source": "h1", "readonly": False})
    return [*first, *memory, *closed, attach_name("p1", "v3"), attach]


@kept
def parent_that_a_later_child_hides() -> list[Step]:
    """A killed parent, whose end multiprocessing does not see while a later child lives."""
    first = [root("p1"), child("p1", "p2"), create("p2", "v1")]
    return [*first, child("p1", "p3"), create("p1", "v2"), Step("kill", "p1"), leave("p2")]


def moments(step: Callable[[str, str], Step], last: int) -> list[Step]:
    """Return a program that kills a child at each fourth function call of its command."""
    steps = [root("p0"), create("p0", "v0")]
    for fuse in range(1, last, 4):
        who, var, name = f"p{fuse}", f"v{fuse}", f"{SALT}.{fuse}"
        deadly = step(who, var)
        deadly.fuse = fuse
        steps += [child("p0", who), create(who, var, name=name), deadly]
    return steps


@kept
def every_moment_of_drop() -> list[Step]:
    return moments(drop, 75)


@kept
def every_moment_of_close() -> list[Step]:
    return moments(lambda who, var: on("close", who, var), 145)


@kept
def every_moment_of_unlink() -> list[Step]:
    return moments(lambda who, var: on("unlink", who, var), 115)


@kept
def every_moment_of_exit() -> list[Step]:
    return moments(lambda who, _: leave(who), 235)


@kept
def every_moment_of_growth() -> list[Step]:
    return moments(lambda who, var: on("resize", who, var, new="v", length=50), 375)


@kept
def every_moment_of_cleanup() -> list[Step]:
    """Kill a process while it removes what a killed one has left."""
    steps: list[Step] = []
    for fuse in range(3, 220, 4):
        dead, alive = f"p{fuse}", f"q{fuse}"
        made = create(dead, f"v{fuse}", name=f"{SALT}.{fuse}")
        steps += [root(dead), made, root(alive), Step("kill", dead)]
        steps += [Step("cleanup", alive, {}, fuse)]
    return steps
