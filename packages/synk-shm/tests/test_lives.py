"""Lives of arrays and processes: some that failed once, and random ones.

Processes of several families run commands, one at a time. Every value read is right, every array is
there while its owner has it, and nothing is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import select
import signal
import time
from multiprocessing import connection
from typing import Any, NamedTuple

import numpy as np
import pytest

from synk_testing import shared_memory

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfds")

LIMIT_S = 60
MISSING = "ShmNotFoundError"

PROCESS = """
import multiprocessing as mp
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from synk_shm._processes.families import home_family

KEPT = []  # freed last, when the interpreter clears its modules

class Here:
    def __init__(self, address, name, table):
        self.address, self.table, self.children = address, table, []
        table.update(me=self, np=np, shm=shm, os=os, load=pickle.loads)
        table["dump"] = lambda array: bytes(ForkingPickler.dumps(array))
        self.line = connection.Client(address)
        self.line.send((name, os.getpid(), home_family()))

    def serve(self):
        while True:
            command, fuse = self.line.recv()
            if fuse:
                light(fuse)
            if command == "leave":
                KEPT.append(self.table)
                return
            self.line.send(self.answer(command))
            if fuse:
                os.kill(os.getpid(), signal.SIGKILL)  # it was longer than the command

    def answer(self, command):
        try:
            try:
                return "ok", eval(command, self.table)
            except SyntaxError:
                return "ok", exec(command, self.table)
        except Exception as error:
            return type(error).__name__, str(error)

    def fork(self, name):
        if os.fork() == 0:
            begin(self.address, name, self.table)
            raise SystemExit  # through all frames and handlers that it inherited

    def start(self, name, method, *sent):
        table = self.table if method == "fork" else {var: self.table[var] for var in sent}
        child = mp.get_context(method).Process(target=begin, args=(self.address, name, table))
        child.start()
        self.children.append(child)

def begin(address, name, table):
    if "me" in table:  # of the process that it was forked from
        table["me"].line.close()
    Here(address, name, table).serve()

def light(fuse):
    left, kill, me, deadly = [fuse], os.kill, os.getpid(), signal.SIGKILL

    def count(*_):  # at each call and return of any function
        left[0] -= 1
        if left[0] == 0:
            kill(me, deadly)

    sys.setprofile(count)

if __name__ == "__main__":
    begin(sys.argv[1], sys.argv[2], {})
"""


class Process:
    def __init__(self, world: World, line: connection.Connection) -> None:
        self.world, self.line = world, line
        self.name, self.pid, self.family = line.recv()
        self._ended = os.pidfd_open(self.pid)
        world.families.add(self.family)

    def ask(self, command: str, fuse: int = 0) -> tuple[str, Any]:
        """Run a command there; return "ok" and its result, an error's name, or "died"."""
        self.line.send((command, fuse))
        try:
            assert self.line.poll(LIMIT_S), f"{self.name} does not answer to {command}"
            answer = self.line.recv()
        except (EOFError, ConnectionResetError):
            answer = "died", None
        if fuse or answer[0] == "died":
            self.wait()
            assert fuse, f"{self.name} died in {command}"
        return answer

    def do(self, *commands: str) -> Any:
        """Run commands, all of which must work; return the last one's result."""
        for command in commands:
            outcome, result = self.ask(command)
            assert outcome == "ok", (self.name, command, outcome, result)
        return result

    def refuses(self, command: str, *errors: str) -> None:
        outcome, result = self.ask(command)
        assert outcome in errors, (self.name, command, outcome, result)

    def fork(self, name: str) -> Process:
        self.do(f"me.fork({name!r})")
        return self.world.accept()

    def start(self, name: str, method: str = "fork", *sent: str) -> Process:
        self.do(f"me.start({', '.join(map(repr, (name, method, *sent)))})")
        return self.world.accept()

    def leave(self) -> None:
        """Let it exit, with all arrays that it still has."""
        self.line.send(("leave", 0))
        self.wait()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Wait until the kernel has dropped its locks; it may still be a zombie."""
        assert select.select([self._ended], [], [], LIMIT_S)[0], f"{self.name} does not end"
        os.close(self._ended)
        self.line.close()
        self.world.alive.remove(self)


class World:
    def __init__(self, script: Any) -> None:
        self.script = script
        self.listener = connection.Listener(None, "AF_UNIX")
        self.alive: list[Process] = []
        self.families: set[str] = set()

    def root(self, name: str) -> Process:
        self.script.start(PROCESS, self.listener.address, name)
        return self.accept()

    def accept(self) -> Process:
        self.alive.append(Process(self, self.listener.accept()))
        return self.alive[-1]

    def close(self) -> None:
        """End all, let a minute pass for messages that were on their way, and look what is left."""
        while self.alive:  # children first, for which their parents wait
            self.alive[-1].leave()
        self.listener.close()
        for family in self.families:
            for name in shared_memory(f"{family}.lock"):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(f"/dev/shm/{name}", (0, 0))
        self.script.run("shm.ones(1)")  # any program's first array removes what is left


@pytest.fixture
def world(script, left):
    made = World(script)
    yield made
    made.close()
    assert left(*made.families) == []


MAKE = "a = shm.share(np.arange(12).reshape(4, 3))"


@pytest.fixture
def named(world, given):
    """Two programs, an array with a name of the first, which the second has attached; the name."""
    name = given("life")
    one, other = world.root("one"), world.root("other")
    one.do(f"a = shm.ones(3, name={name!r})")
    other.do(f"b = shm.attach({name!r})")
    return one, other, name


def test_a_name_that_was_given_again(named):
    """What had the name before is neither sent, nor unlinked, nor grown in its place."""
    one, other, name = named
    one.do("del a", f"a = shm.full(3, 2.0, name={name!r})")
    other.refuses("dump(b)", MISSING)
    other.refuses("shm.unlink(b)", MISSING)
    assert one.do("a.sum()") == 6
    assert other.do(f"float(shm.attach({name!r}).sum())") == 6


@pytest.mark.parametrize("end", ["del a", "shm.close(a)", "a = shm.resize(a, 50)", "leave"])
def test_a_name_that_another_has_taken(named, end):
    one, other, name = named
    other.do(f"shm.unlink({name!r})", f"c = shm.full(3, 5.0, name={name!r})")
    one.leave() if end == "leave" else one.do(end)
    assert other.do(f"float(shm.attach({name!r}).sum())") == 15


def test_an_unlinked_name_does_not_come_back_with_growth(named):
    one, other, name = named
    other.do("shm.unlink(b)")
    assert one.do("a = shm.resize(a, 50)", "a[:3].tolist(), a[3:].any()") == ([1] * 3, False)
    other.refuses(f"shm.attach({name!r})", MISSING)


def test_a_message_of_another_family(named):
    """It goes with its sender's family; the segment belongs to the family of its maker."""
    one, other, name = named
    other.do("m = dump(b)")
    mine = f"[info.mine for info in shm.list() if info.name == {name!r}]"
    assert (one.do(mine), other.do(mine)) == ([True], [False])
    other.leave()
    assert one.do(f"float(shm.attach({name!r}).sum())") == 3


def test_a_fork_forwards_an_array_whose_maker_has_ended(world):
    parent = world.root("parent")
    parent.do(MAKE)
    maker = parent.start("maker")
    maker.do("b = shm.ones(3)")
    handle, message = maker.do("tuple(shm.handle(b)), dump(b)")
    parent.do(f"c = shm.Handle(*{handle!r}).attach()", f"d = load({message!r})")
    maker.leave()
    parent.start("child").do("m = dump(d)")


def test_a_fork_unlinks_an_unread_message_too(world):
    parent = world.root("parent")
    parent.do(MAKE, "m = dump(a)")
    child = parent.fork("child")
    parent.leave()
    child.do("shm.unlink(a)")
    assert shared_memory(f"synk.{child.family}.") == []


def test_the_number_of_a_closed_memory_file(world, given):
    """It may stand for a lock file now."""
    one, other = world.root("one"), world.root("other")
    other.do(f"a = shm.ones(3, name={given('life')!r})")
    name = other.do("shm.segment(a).names[-1]")
    handle = one.do("b = shm.ones(3, backend='memfd')", "tuple(shm.handle(b))")
    one.do("del b", f"c = shm.attach({name!r})")
    other.refuses(f"shm.Handle(*{handle!r}).attach()", MISSING)


def test_a_killed_parent_that_a_later_child_hides(world, left):
    """multiprocessing does not see its end while the later child lives."""
    parent = world.root("parent")
    first = parent.start("first")
    first.do(MAKE)
    parent.start("second")
    parent.do(MAKE)
    parent.kill()
    first.leave()


@pytest.mark.parametrize("parent_leaves_first", [False, True])
def test_a_last_message_to_a_parent_that_has_no_arrays(world, parent_leaves_first):
    parent = world.root("parent")
    child = parent.fork("child")
    child.do(MAKE, "m = dump(a)")
    for process in (parent, child) if parent_leaves_first else (child, parent):
        process.leave()


def test_a_child_outlives_its_killed_parent(world, given, left, each_method):
    parent, name = world.root("parent"), given("child")
    parent.do(MAKE, f"b = shm.full(5, 2.0, name={name!r})")
    child = parent.start("child", each_method, "a")
    parent.kill()
    child.do(f"b = shm.attach({name!r})", "own = shm.full(3, 4.0)")
    assert child.do("[n for n in shm.cleanup() if shm.segment(own).family in n]") == []
    again = "shm.attach(shm.handle(own), readonly=True)"
    assert child.do(f"[float(x.sum()) for x in (a, b, {again})]") == [66, 10, 12]
    child.leave()
    assert left(parent.family, name) == []


@pytest.mark.parametrize("workers, end", [(1, ""), (3, ""), (1, "shm.close(b)")])
def test_last_attacher_removes_segments_of_a_killed_owner(world, left, workers, end):
    owner = world.root("owner")
    handle = owner.do(MAKE, "tuple(shm.handle(a))")
    others = [world.root(f"other{number}") for number in range(workers)]
    for other in others:
        other.do(f"b = shm.Handle(*{handle!r}).attach()")
    owner.kill()
    for other in others:
        assert shared_memory(owner.family), "a reader keeps the family alive"
        assert other.do("b.sum()") == 66
        if end:
            other.do(end)
            assert left(owner.family) == [], "while the attacher runs"
        other.leave()
    assert left(owner.family) == []


def test_a_fork_that_has_left_keeps_nothing_of_its_killed_parent(world, given, left):
    parent, name = world.root("parent"), given("orphan")
    parent.do(f"a = shm.ones(3, name={name!r})")
    child = parent.fork("child")
    child.do("shm.leave()")
    parent.kill()
    assert f"/synk.u.{name}" in child.do("shm.cleanup()")
    assert left(name) == []
    assert child.do("own = shm.ones(2)", "float(a.sum()), len(shm.list(mine=True))") == (3, 1)


def test_names_that_others_remove(world, given, method):
    """systemd's RemoveIPC deletes all names at logout: peers fail at exit, or never stop.

    A message also arrives if its sender notices the removal and exits before its parent notices.
    """
    parent, name = world.root("parent"), given("taken")
    parent.do(MAKE, f"b = shm.ones(3, name={name!r})", "grows = shm.ones(3, capacity=1000)")
    handle = parent.do("tuple(shm.handle(a))")
    child = parent.start("child", method, "a")
    for entry in [*shared_memory(parent.family), *shared_memory(name)]:
        os.unlink(f"/dev/shm/{entry}")
    child.do("a[0] = 5")
    time.sleep(0.2)  # the lock file is checked every 0.1 s; until then others may clean up
    message = child.do("own = shm.ones(4)", "dump(own)")
    child.leave()
    assert parent.do(f"float(a.sum()), float(load({message!r}).sum())") == (78, 4)
    parent.do("shm.list(), shm.cleanup()")
    for act in ("shm.unlink(a)", f"shm.attach({name!r})", f"shm.Handle(*{handle!r}).attach()"):
        parent.refuses(act, MISSING)
    parent.do("shm.unlink(b, missing_ok=True)", "shm.close(grows)")
    time.sleep(0.2)
    parent.do(f"again = shm.full(2, 3.0, name={name!r})")
    assert parent.do(f"float(shm.attach({name!r}).sum())") == 6
    found = f"[(info.alive, info.mine) for info in shm.list() if info.name == {name!r}]"
    assert parent.do(found) == [(True, True)]


def test_attached_processes_see_growth(named):
    one, other, name = named
    one.do(f"c = shm.zeros((1, 2), capacity=100, name='{name}g')")
    other.do(f"c = shm.attach('{name}g')")
    one.do("c = shm.resize(c, 100)", "c[...] = 2")
    seen = "d.shape, float(d.sum()), c.ctypes.data == d.ctypes.data"
    assert other.do(f"d = shm.attach('{name}g')", seen) == ((100, 2), 400, True)
    outcome, said = other.ask("shm.resize(d, 3)")
    assert (outcome, "only the process that made" in said) == ("ValueError", True)


def test_a_memory_file_leaves_nothing_of_its_killed_owner(world):
    owner, other = world.root("owner"), world.root("other")
    handle = owner.do("a = shm.ones(3, backend='memfd')", "tuple(shm.handle(a))")
    other.do(f"b = shm.Handle(*{handle!r}).attach()")
    assert shared_memory(f"synk.{owner.family}") == []
    owner.kill()
    assert other.do("float(b.sum())") == 3
    other.do("shm.close(b)", "del b")
    other.refuses(f"shm.Handle(*{handle!r}).attach()", MISSING)


SENT = "m = dump(a), dump(shm.ones(7))"


@pytest.mark.parametrize(
    "what", ["here", "dropped", "after a child", "received", "never received", "killed"]
)
def test_nothing_stays_when_a_program_has_ended(world, left, what):
    parent = world.root("parent")
    parent.do(MAKE)
    if what == "killed":
        child = parent.fork("child")
        child.do("own = shm.ones(4), shm.attach(shm.handle(a), readonly=True)")
        child.kill()
    elif "received" not in what:
        parent.do(SENT, *(["del a"] * (what == "dropped")))
        if what == "after a child":
            parent.start("child").leave()
    else:
        child = parent.start("child")
        messages = child.do(SENT, "m")
        child.leave()
        if what == "received":
            parent.do(f"c = [load(message) for message in {messages!r}]")
    parent.leave()
    assert left(parent.family) == []


MOMENTS = {
    "del a": 75,
    "shm.close(a)": 145,
    "shm.unlink(a)": 115,
    "shm.resize(a, 50)": 375,
    "leave": 235,
}


@pytest.mark.nightly
@pytest.mark.parametrize("act", MOMENTS)
def test_a_kill_at_each_moment_of_an_act(world, given, act):
    parent = world.root("parent")
    parent.do(MAKE)
    name = given("x")
    for fuse in range(1, MOMENTS[act], 4):
        child = parent.start(f"child{fuse}")
        child.do(f"a = shm.ones((4, 3), name='{name}{fuse}'[-22:])")
        child.ask(act, fuse)
    assert parent.do("a.sum()") == 66


@pytest.mark.nightly
def test_a_kill_at_each_moment_of_a_cleanup(world, given):
    name = given("x")
    for fuse in range(3, 220, 8):
        dead, alive = world.root(f"dead{fuse}"), world.root(f"alive{fuse}")
        dead.do(f"a = shm.ones(3, name='{name}{fuse}'[-22:])")
        dead.kill()
        alive.ask("shm.cleanup()", fuse)


@dataclasses.dataclass(eq=False)
class Segment:
    """Memory as the test expects it. `sure`: nothing has made its names doubtful."""

    memory: np.ndarray
    backend: str
    rows: int
    sure: bool = True


class Mapping:
    """A segment in a process. `keeper`: the mapping with whose last array the name goes."""

    def __init__(self, process: Process, segment: Segment, readonly: bool, keeper: Any) -> None:
        self.process, self.segment, self.readonly = process, segment, readonly
        self.keeper = self if keeper is None or segment.backend == "memfd" else keeper


@dataclasses.dataclass(eq=False)
class Array:
    """An array of a process, and the same part of the expected memory."""

    mapping: Mapping
    mirror: np.ndarray
    whole: bool = False

    @property
    def process(self) -> Process:
        return self.mapping.process

    @property
    def segment(self) -> Segment:
        return self.mapping.segment


class Sent(NamedTuple):
    """A handle or a message. `keeper`: of the mapping, when it was made."""

    data: Any
    segment: Segment
    mirror: np.ndarray
    readonly: bool
    keeper: Mapping


class Life:
    """A random program over the processes of a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng, self.count = world, random.Random(seed), 0
        self.arrays: dict[str, Array] = {}
        self.handles: list[Sent] = []
        self.messages: list[Sent] = []
        self.parents: dict[Process, Process] = {}  # of those for which a parent waits

    def run(self, steps: int) -> None:
        self.world.root(self.new("p"))
        acts = [self.create] * 4 + [self.attach] * 4 + [self.send, self.receive] * 2
        acts += [self.view, self.read, self.write, self.write, self.resize, self.drop, self.drop]
        acts += [self.close, self.unlink, self.child, self.child, self.end, self.look]
        for _ in range(steps):
            self.rng.choice(acts)()
            if not self.world.alive:
                self.world.root(self.new("p"))
        for name in list(self.arrays):
            self.check(name)

    def new(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def any(self) -> str | None:
        return self.rng.choice(list(self.arrays)) if self.arrays else None

    def mapping(self, process: Process, segment: Segment, readonly: bool, keeper: Any) -> Mapping:
        for array in self.arrays.values():
            known = array.mapping
            if (known.process, known.segment, known.readonly) == (process, segment, readonly):
                return known
        return Mapping(process, segment, readonly, keeper)

    def on(self, mapping: Mapping) -> list[Array]:
        return [array for array in self.arrays.values() if array.mapping is mapping]

    def is_there(self, sent: Sent) -> bool:
        return sent.segment.sure and bool(self.on(sent.keeper))

    def sent(self, name: str, data: Any) -> Sent:
        mapping = self.arrays[name].mapping
        mirror = self.arrays[name].mirror
        return Sent(data, mapping.segment, mirror, mapping.readonly, mapping.keeper)

    def create(self) -> None:
        process, name = self.rng.choice(self.world.alive), self.new("v")
        backend = "memfd" if self.rng.random() < 0.2 else "shm"
        rows, seed = self.rng.randint(0, 4), self.rng.randint(0, 99)
        code = f"shm.empty(({rows}, 3), 'i4', capacity=5, backend={backend!r})"
        if self.rng.random() < 0.1:
            process.ask(f"{name} = {code}", self.rng.randint(1, 150))
            self.gone(process)
            return
        process.do(f"{name} = {code}", f"{name}[...] = {seed}")
        segment = Segment(np.zeros((5, 3), "i4"), backend, rows)
        mirror = segment.memory[:rows]
        mirror[...] = seed
        self.arrays[name] = Array(Mapping(process, segment, False, None), mirror, whole=True)
        self.handles.append(self.sent(name, process.do(f"tuple(shm.handle({name}))")))

    def take(self, code: str, sent: Sent, readonly: bool) -> str | None:
        """Make a process take an array; it may be gone, if it is not there for sure."""
        process, name = self.rng.choice(self.world.alive), self.new("v")
        outcome, said = process.ask(f"{name} = {code}")
        if outcome != "ok":
            assert (outcome, self.is_there(sent)) == (MISSING, False), said
            return None
        mapping = self.mapping(process, sent.segment, readonly, sent.keeper)
        self.arrays[name] = Array(mapping, sent.mirror)
        self.check(name)
        return name

    def attach(self) -> None:
        if self.handles:
            sent, readonly = self.rng.choice(self.handles), self.rng.random() < 0.3
            self.take(f"shm.Handle(*{sent.data!r}).attach({readonly})", sent, readonly)

    def send(self) -> None:
        name = self.any()
        if name is not None:
            outcome, data = self.arrays[name].process.ask(f"dump({name})")
            sent = self.sent(name, data)
            assert outcome == "ok" or not self.is_there(sent), data
            if outcome == "ok":
                self.messages.append(sent)

    def receive(self) -> None:
        if self.messages:
            sent = self.messages.pop(self.rng.randrange(len(self.messages)))
            name = self.take(f"load({sent.data!r})", sent, sent.readonly)
            if name is not None and self.on(sent.keeper):
                mapping = self.arrays[name].mapping
                mapping.keeper = mapping  # it owns the name that came along

    def view(self) -> None:
        source = self.any()
        if source is not None:
            array, name, cut = self.arrays[source], self.new("v"), self.rng.randint(0, 3)
            array.process.do(f"{name} = {source}[{cut}:, ::-1]")
            self.arrays[name] = Array(array.mapping, array.mirror[cut:, ::-1])

    def read(self) -> None:
        if self.arrays:
            self.check(self.any())

    def check(self, name: str) -> None:
        array = self.arrays[name]
        found = array.process.do(f"{name}.shape, {name}.tolist()")
        assert found == (array.mirror.shape, array.mirror.tolist()), name

    def write(self) -> None:
        name, seed = self.any(), self.rng.randint(0, 99)
        if name is None:
            return
        array = self.arrays[name]
        if array.mapping.readonly:
            array.process.refuses(f"{name}[...] = 1", "ValueError")
            return
        array.process.do(f"{name}[...] = {seed}")
        array.mirror[...] = seed

    def resize(self) -> None:
        name = self.any()
        array = self.arrays[name] if name else None
        if array is None or not array.whole or len(array.mirror) != array.segment.rows:
            return
        segment, rows, new = array.segment, self.rng.randint(0, 5), self.new("v")
        array.process.do(f"{new} = shm.resize({name}, {rows})")
        segment.rows = rows
        self.arrays[new] = Array(array.mapping, segment.memory[:rows], whole=True)
        self.check(new)

    def drop(self) -> None:
        if self.arrays:
            name = self.any()
            self.arrays.pop(name).process.do(f"del {name}")

    def close(self) -> None:
        name = self.any()
        if name is None:
            return
        array = self.arrays[name]
        outcome, said = array.process.ask(f"shm.close({name})")
        if array.segment.sure:  # else a process may have mapped it anew
            expected = "BufferError" if len(self.on(array.mapping)) > 1 else "ok"
            assert outcome == expected, said
        if outcome == "ok":
            array.process.do(f"del {name}")
            array.segment.sure = False  # its owner removes each of its names
            del self.arrays[name]

    def unlink(self) -> None:
        name = self.any()
        if name is not None:
            self.arrays[name].process.do(f"shm.unlink({name}, missing_ok=True)")
            self.arrays[name].segment.sure = False

    def child(self) -> None:
        if len(self.world.alive) > 4:
            return
        process, name = self.rng.choice(self.world.alive), self.new("p")
        kind = self.rng.choice(["root", "fork", "start", "start"])
        if kind == "root":
            self.world.root(name)
            return
        # A raw fork of a process with children of multiprocessing fails when it joins them.
        if kind == "fork" and process in self.parents.values():
            return
        child = process.fork(name) if kind == "fork" else process.start(name)
        if kind == "start":
            self.parents[child] = process
        for old in [name for name, array in self.arrays.items() if array.process is process]:
            array, new = self.arrays[old], self.new("v")
            child.do(f"{new} = {old}", f"del {old}")
            mapping = self.mapping(
                child, array.segment, array.mapping.readonly, array.mapping.keeper
            )
            self.arrays[new] = Array(mapping, array.mirror)

    def end(self) -> None:
        process = self.rng.choice(self.world.alive)
        if self.rng.random() < 0.4:
            process.kill()
            self.gone(process)
        elif process not in self.parents.values():  # else it waits for its children
            process.leave()
            self.gone(process)

    def gone(self, process: Process) -> None:
        """Note the end of a process: what only it kept may be gone, or not yet."""
        self.arrays = {n: a for n, a in self.arrays.items() if a.process is not process}
        self.parents.pop(process, None)

    def look(self) -> None:
        process = self.rng.choice(self.world.alive)
        process.do("[info.name for info in shm.list()]", "shm.cleanup()")


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, 26))]
)
def test_random_lives(world, seed):
    Life(world, seed).run(80)


@pytest.mark.nightly
def test_a_life_with_a_fresh_seed(world):
    seed = random.SystemRandom().randrange(1 << 31)
    print("seed", seed)
    Life(world, seed).run(300)
