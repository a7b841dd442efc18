"""Who lives, who owns which name, and what goes when somebody lets go or dies.

The half of the model that knows about processes. The rule is that of the package's README:
a name goes with the last array of its owner; what a killed owner leaves goes with the
family, when the last member has left and somebody looks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Callable, Optional

import numpy as np
from state import GONE, MAYBE, THERE, Actor, Address, Entry, Holding, Mapping, Message, Segment

OK, DIED = "ok", "died"

Command = Generator[set[str], tuple[str, Any], None]


class Wrong(AssertionError):
    """What happened is not what the model says."""


class Life:
    """The world as it should be. `look` lists what is there: names and their inodes."""

    def __init__(self, look: Callable[[], dict[str, int]], alone: bool) -> None:
        self.look = look
        self.alone = alone  # nobody else has segments in this /dev/shm
        self.actors: dict[str, Actor] = {}
        self.segments: list[Segment] = []
        self.addresses: dict[str, Address] = {}
        self.messages: dict[str, Message] = {}
        self.graced: set[str] = set()  # families whose leftovers may stay for a minute
        self.retired: set[str] = set()  # given names of which nobody knows any more
        self.ghosts = False  # a killed process may have made what nobody knows of

    # commands on processes

    def root(self, who: str, how: str) -> None:
        """A process of a new family."""
        self.actors[who] = Actor(who, how, home=who)

    def fork(self, who: str, name: str) -> Command:
        parent = self.actors[who]
        outcome, _ = yield {OK}
        if outcome == OK:
            self.inherit(Actor(name, "os.fork", parent.home, parent, parent.mp_parent), parent)

    def start(self, who: str, name: str, method: str, daemon: bool, names: list[str]) -> Command:
        parent = self.actors[who]
        outcome, _ = yield {OK}
        if outcome != OK:
            return
        child = Actor(name, method, parent.home, parent, parent, daemon)
        if method == "fork":
            self.inherit(child, parent)
            return
        self.actors[name] = child
        for var in names:
            sent = parent.vars[var]
            segment, readonly = sent.mapping.segment, sent.mapping.readonly
            self.arm(child)
            mapping = self.map(child, segment, readonly)
            if segment.backend == "shm" and not mapping.owner:
                fresh = self.fresh_names(segment)
                if len(fresh) != 1:
                    raise Wrong(f"{name} should have one new name of {segment}, has {fresh}")
                self.name(segment, fresh[0], child, mapping)
                mapping.owner = True
            mapping.via.update(self.names_of(sent.mapping))
            child.vars[var] = Holding(sent.array, mapping)

    def exit(self, who: str, how: str) -> Command:
        actor = self.actors[who]
        outcome, _ = yield {OK}
        for child in self.actors.values():
            if child.daemon and child.parent is actor and child.alive and how != "hard":
                self.gone(child, "died")  # terminated by its parent
        dead = "kill" if how == "hard" else "exit"
        self.gone(actor, dead if outcome == OK else "died")

    def kill(self, who: str) -> Command:
        yield {OK}
        self.gone(self.actors[who], "kill")

    def kill_group(self, who: str) -> Command:
        """All processes of a family at once."""
        yield {OK}
        for actor in self.actors.values():
            if actor.alive and actor.home == who:
                self.gone(actor, "kill")

    def storm(self, who: str, others: list[str], victim: Optional[str], **_: Any) -> Command:
        """Several processes make, attach and drop at the same time; nothing is left of it."""
        yield {OK}
        if victim is not None:
            self.ghosts = True
            self.gone(self.actors[victim], "kill")
        for name in {who, *others} - {victim}:
            if victim is None:
                self.arm(self.actors[name])
            self.actors[name].armed = True  # before the kill or after it

    def leave_together(self, who: str, ends: dict[str, str]) -> Command:
        """Several processes exit or are killed at the same time, in any order."""
        yield {OK}
        actors = [self.actors[who] for who in ends]
        # Besides kills: the parent of a daemon or of a raw fork does not wait for its messages,
        # and may go between the other's look at it and end.
        rough = any(how in ("kill", "hard") for how in ends.values()) or any(
            actor.daemon or (actor.how == "os.fork" and actor.mp_parent) for actor in actors
        )
        for actor in actors:
            parent = actor.mp_parent
            if parent is not None and (rough or not parent.armed):
                self.graced.add(actor.home)
        for actor in sorted(actors, key=lambda a: a.armed is True):
            self.gone(actor, "died" if rough else "exit")

    def list(self, who: str) -> Command:
        outcome, result = yield {OK}
        if outcome != OK:
            return
        actor = self.actors[who]
        for segment in self.segments:
            names = {e.name for e in segment.entries.values() if e.state != GONE}
            found = [info for info in result if names & set(info[0])]
            if THERE not in segment.states():
                continue
            there = {e.name for e in segment.entries.values() if e.state == THERE}
            if len(found) != 1 or not there <= set(found[0][0]) <= names:
                raise Wrong(f"list() shows {found} for {segment}")
            _, shape, alive, mine = found[0]
            if shape != segment.shape and not segment.vague:
                raise Wrong(f"list() shows shape {shape} for {segment}")
            if self.members(segment.family) and not alive:
                raise Wrong(f"list() shows {segment} of a living family as dead")
            if actor.armed is not None and mine != (segment.family == actor.home and actor.armed):
                raise Wrong(f"list() shows {segment} as {'' if mine else 'not '}mine in {who}")

    def cleanup(self, who: str) -> Command:
        there = {entry.name for _, entry in self.entries() if entry.state == THERE}
        outcome, result = yield {OK}
        if outcome == OK:
            if there & set(result):
                raise Wrong(f"cleanup() removed what lives: {sorted(there & set(result))}")
            self.sweep_dead()

    def audit(self, who: str) -> Command:
        actor = self.actors[who]
        outcome, result = yield {OK}
        if outcome != OK:
            return
        links, mapped = result
        if mapped != len(actor.mappings):
            raise Wrong(f"{who} maps {mapped} segments, it should be {len(actor.mappings)}")
        files = [link for link in links if not link.endswith(".lock")]
        if len(files) > 2 * mapped + len(actor.locks) or len(links) - len(files) > len(self.actors):
            raise Wrong(f"{who} has {mapped} segments mapped and these files open: {links}")

    # processes and families

    def inherit(self, child: Actor, parent: Actor) -> None:
        """A forked child has all arrays of its parent, and owns none of their names."""
        self.actors[child.name] = child
        child.armed = parent.armed
        for old in parent.mappings:
            new = Mapping(child, old.segment, old.readonly, False, old.closed, old.unlinked)
            new.via = self.names_of(old)
            child.mappings.append(new)
            for var, holding in parent.vars.items():
                if holding.mapping is old:
                    child.vars[var] = Holding(holding.array, new)

    def arm(self, actor: Actor, certainly: bool = True) -> None:
        """A process's first shared array: it joins its home family, and sweeps the dead."""
        if actor.armed:
            return
        first = actor.armed is False
        actor.armed = True if certainly else None
        if certainly and first:
            self.sweep_dead()

    def members(self, family: str, certain: bool = True) -> list[Actor]:
        """The processes that keep a family alive."""
        return [
            actor
            for actor in self.actors.values()
            if actor.alive
            and (
                (actor.home == family and (actor.armed or (actor.armed is None and not certain)))
                or any(family in self.needed(mapping) for mapping in actor.mappings)
            )
        ]

    def needed(self, mapping: Mapping) -> set[str]:
        """The families that a process holds because of a mapping: for its names only."""
        if mapping.closed or mapping.segment.backend == "memfd":
            return set()
        return {mapping.segment.family} | {entry.family for entry in mapping.owned()}

    def gone(self, actor: Actor, how: str) -> None:
        """A process has ended: by itself ("exit"), by "kill", or it "died" in between."""
        families = {family for mapping in actor.mappings for family in self.needed(mapping)}
        families |= {actor.home} if actor.armed is not False else set()
        actor.alive = False
        for mapping in actor.mappings:
            for entry in mapping.owned():
                entry.owners.discard(mapping)
                if how != "kill" and entry.state != GONE:
                    entry.state = GONE if how == "exit" else MAYBE
        actor.vars.clear()
        actor.locks.clear()
        actor.mappings.clear()
        awaited = actor.mp_parent is not None and actor.mp_parent.alive
        if how != "kill":
            self.grant_grace(actor)
        for family in families:
            cleanly = how == "exit" and actor.armed is True
            self.left(family, cleanly, last=family == actor.home and not awaited)

    def grant_grace(self, actor: Actor) -> None:
        """A message of a child may stay, though it ends, if its parent is no member yet."""
        parent = actor.mp_parent
        if parent is not None and parent.alive and not parent.armed:
            self.graced.add(actor.home)

    def left(self, family: str, cleanly: bool, last: bool = False) -> None:
        """A member has left: the last one sweeps, if it could. Nobody may read what is left."""
        if self.members(family):
            return
        graced = family in self.graced and not last
        if cleanly and not graced and not self.members(family, certain=False):
            self.wipe(family, GONE)
        else:
            self.wipe(family, MAYBE)

    def wipe(self, family: str, state: str) -> None:
        for _, entry in self.entries():
            if entry.family == family and entry.state != GONE:
                entry.state = state

    def sweep_dead(self) -> None:
        for family in {entry.family for _, entry in self.entries()} - self.graced:
            if not self.members(family, certain=False):
                self.wipe(family, GONE)

    def release(self, mapping: Mapping, outcome: str) -> None:
        """A process has let go of a segment: its names there go, and perhaps a family."""
        if mapping.closed:
            return
        families = self.needed(mapping) - {mapping.actor.home}
        for entry in mapping.owned():
            entry.owners.discard(mapping)
            if entry.state != GONE:
                entry.state = GONE if outcome == OK else MAYBE
        mapping.closed = True
        for family in families:
            self.left(family, cleanly=outcome == OK)

    # segments and their names

    def add_segment(
        self,
        actor: Actor,
        backend: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        fortran: bool,
        capacity: int,
    ) -> Segment:
        segment = Segment(
            len(self.segments) + 1, actor.home, backend, dtype, shape, fortran, capacity
        )
        self.segments.append(segment)
        return segment

    def name(
        self,
        segment: Segment,
        name: str,
        actor: Actor,
        owner: Optional[Mapping],
        user: bool = False,
    ) -> Optional[Entry]:
        """A name that `actor` has made; None for a segment that has none."""
        if segment.backend == "memfd":
            return None
        if not segment.inode:
            segment.inode = self.look().get(name, 0)
        entry = Entry(name, actor.home, {owner} if owner is not None else set(), user=user)
        segment.entries[name] = entry
        return entry

    def map(self, actor: Actor, segment: Segment, readonly: bool, owner: bool = False) -> Mapping:
        """The mapping that a process gets by one more attach."""
        mapping = actor.usable(segment, readonly)
        if mapping is None:
            mapping = Mapping(actor, segment, readonly, owner)
            actor.mappings.append(mapping)
        return mapping

    def hold(
        self, actor: Actor, var: str, array: np.ndarray, mapping: Mapping, result: dict[str, Any]
    ) -> None:
        """A process has one more array; it must be as the model's is."""
        actor.vars[var] = Holding(array, mapping)
        self.check_array(actor.vars[var], result)

    def entries(self) -> Iterable[tuple[Segment, Entry]]:
        return [(s, entry) for s in self.segments for entry in s.entries.values()]

    def names_of(self, mapping: Mapping) -> set[str]:
        """The names under which a process may think that others find a segment."""
        return {entry.name for entry in mapping.owned()} or set(mapping.via)

    def fresh_names(self, segment: Segment) -> list[str]:
        """The names of a segment in the system that the model does not know."""
        known = {entry.name for entry in segment.entries.values() if entry.state != GONE}
        return [n for n, inode in self.look().items() if inode == segment.inode and n not in known]

    # expectations

    def state(self, segment: Segment, name: str, source: Mapping) -> str:
        """Whether a segment can be found under the address that `source` gave."""
        if segment.backend == "memfd":
            there = source.actor.mappings
            if source in there and not (source.closed or source.unlinked):
                return THERE
            # By chance the number of the file may stand for the same memory again.
            return MAYBE if any(one.segment is segment for one in there) else GONE
        entry = segment.entries.get(name)
        return entry.state if entry is not None else MAYBE if segment.ghosts else GONE

    def check_array(self, holding: Holding, result: dict[str, Any]) -> None:
        mapping, segment = holding.mapping, holding.mapping.segment
        expected = {
            "readonly": mapping.readonly,
            "writeable": not mapping.readonly,
            "closed": mapping.closed,
            "owner": mapping.owner and not mapping.closed,
            "backend": segment.backend,
            "dtype": holding.array.dtype,
            "shape": holding.array.shape,
        }
        for key, value in expected.items():
            if result[key] != value and not (key == "shape" and segment.vague):
                raise Wrong(f"{key} is {result[key]}, expected {value}")

    def check_bytes(self, holding: Holding, seen: bytes) -> None:
        array = holding.array
        known = holding.mapping.segment.known_bytes(array).reshape(-1)
        wanted = np.frombuffer(np.ascontiguousarray(array).tobytes(), "u1")
        found = np.frombuffer(seen, "u1")
        if len(found) != len(wanted) or (found != wanted)[known].any():
            raise Wrong(f"the values are {seen!r}, expected {wanted.tobytes()!r}")

    def check_names(self) -> None:
        """What is in /dev/shm is what the model says, after every step."""
        found: dict[int, set[str]] = {}
        for name, inode in self.look().items():
            found.setdefault(inode, set()).add(name)
        for segment in self.segments:
            names = found.pop(segment.inode, set())
            for entry in segment.entries.values():
                if entry.state == THERE and entry.name not in names:
                    raise Wrong(f"{entry.name} has gone, but {self.reason(segment, entry)}")
                if entry.state == GONE and entry.name in names:
                    raise Wrong(f"{entry.name} of segment {segment.number} is left")
                if entry.state == MAYBE and entry.name not in names:
                    entry.state = GONE
            for name in names - set(segment.entries):
                if not (self.ghosts or segment.ghosts):
                    raise Wrong(f"segment {segment.number} has a name that nobody made: {name}")
                segment.entries[name] = Entry(name, segment.family, set(), MAYBE)
        if self.alone and found and not self.ghosts:
            raise Wrong(f"segments that nobody made: {sorted(map(sorted, found.values()))}")

    def reason(self, segment: Segment, entry: Entry) -> str:
        owners = sorted(mapping.actor.name for mapping in entry.owners)
        alive = sorted(actor.name for actor in self.members(entry.family))
        return (
            f"it is a name of segment {segment.number}, owned by {owners or 'nobody'}, "
            f"and its family is kept alive by {alive}"
        )
