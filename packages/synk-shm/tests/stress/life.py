"""The half of the model about processes: which are alive, own a name, or remove one.

The rule is that of the package's README: a name is removed with the last array of its owner; what a
killed owner leaves is removed after the last member of its family has ended, by that member or by
the next process that makes an array.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Callable, Optional

import numpy as np
from state import GONE, MAYBE, THERE, Actor, Address, Entry, Holding, Mapping, Message, Segment

OK, DIED = "ok", "died"

Command = Generator[set[str], tuple[str, Any], None]


class Wrong(AssertionError):
    """The outcome is not the one that the model predicts."""


class Life:
    """The expected state. `look` lists the actual names with their inodes."""

    def __init__(self, look: Callable[[], dict[str, int]], alone: bool) -> None:
        self.look = look
        self.alone = alone  # no other program has segments in this /dev/shm
        self.actors: dict[str, Actor] = {}
        self.segments: list[Segment] = []
        self.addresses: dict[str, Address] = {}
        self.messages: dict[str, Message] = {}
        self.graced: set[str] = set()  # families whose leftovers may stay for a minute
        self.retired: set[str] = set()  # given names whose state is unknown
        self.ghosts = False  # a killed process may have made unknown names

    # commands on processes

    def root(self, who: str, how: str) -> None:
        """Start a process of a new family."""
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
        """Kill all processes of a family at once."""
        yield {OK}
        for actor in self.actors.values():
            if actor.alive and actor.home == who:
                self.gone(actor, "kill")

    def storm(self, who: str, others: list[str], victim: Optional[str], **_: Any) -> Command:
        """Let several processes make, attach and drop at the same time; nothing is left."""
        yield {OK}
        if victim is not None:
            self.ghosts = True
            self.gone(self.actors[victim], "kill")
        for name in {who, *others} - {victim}:
            if victim is None:
                self.arm(self.actors[name])
            self.actors[name].armed = True  # before the kill or after it

    def leave_together(self, who: str, ends: dict[str, str]) -> Command:
        """Let several processes exit or be killed at the same time, in any order."""
        yield {OK}
        actors = [self.actors[who] for who in ends]
        # Besides kills: the parent of a daemon or of a raw fork does not wait for its messages,
        # and may end between the child's check of it and the child's end.
        rough = any(how in ("kill", "hard") for how in ends.values()) or any(
            actor.daemon or (actor.how == "os.fork" and actor.mp_parent) for actor in actors
        )
        for actor in actors:
            parent = actor.mp_parent
            if parent is not None and (rough or not parent.armed):
                self.graced.add(actor.home)
        for actor in sorted(actors, key=lambda a: a.armed is True):
            self.gone(actor, "died" if rough else "exit", actors)

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
        """Give a forked child all arrays of its parent, without their names."""
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
        """Note a process's first shared array: it joins its family, and cleans up dead ones."""
        if actor.armed:
            return
        first = actor.armed is False
        actor.armed = True if certainly else None
        if certainly and first:
            self.sweep_dead()

    def members(self, family: str, certain: bool = True) -> list[Actor]:
        """Return the processes that keep a family alive."""
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
        """Return the families that a process keeps alive by the names of a mapping."""
        if mapping.closed or mapping.segment.backend == "memfd":
            return set()
        return {mapping.segment.family} | {entry.family for entry in mapping.owned()}

    def gone(self, actor: Actor, how: str, together: Sequence[Actor] = ()) -> None:
        """Note the end of a process: an "exit", a "kill", or it "died" during an exit.

        Args:
            together: processes that end at the same time, and may have been alive then.
        """
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
        parent = actor.mp_parent
        awaited = parent is not None and (parent.alive or parent in together)
        if how != "kill":
            self.grant_grace(actor)
        for family in families:
            cleanly = how == "exit" and actor.armed is True
            self.left(family, cleanly, last=family == actor.home and not awaited)

    def grant_grace(self, actor: Actor) -> None:
        """Allow messages of an ended child to stay, if its parent is not a member yet."""
        parent = actor.mp_parent
        if parent is not None and parent.alive and not parent.armed:
            self.graced.add(actor.home)

    def left(self, family: str, cleanly: bool, last: bool = False) -> None:
        """Note that a member has left: the last one cleans up, if it could."""
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
        """Note that a process has dropped a segment: its names go, and perhaps a family."""
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
        """Add a name that `actor` has made; return None for a segment without names."""
        if segment.backend == "memfd":
            return None
        if not segment.inode:
            segment.inode = self.look().get(name, 0)
        entry = Entry(name, actor.home, {owner} if owner is not None else set(), user=user)
        segment.entries[name] = entry
        return entry

    def map(self, actor: Actor, segment: Segment, readonly: bool, owner: bool = False) -> Mapping:
        """Return the mapping that a process gets by one more attach."""
        mapping = actor.usable(segment, readonly)
        if mapping is None:
            mapping = Mapping(actor, segment, readonly, owner)
            actor.mappings.append(mapping)
        return mapping

    def hold(
        self, actor: Actor, var: str, array: np.ndarray, mapping: Mapping, result: dict[str, Any]
    ) -> None:
        """Note one more array of a process, and compare it with the model's."""
        actor.vars[var] = Holding(array, mapping)
        self.check_array(actor.vars[var], result)

    def entries(self) -> Iterable[tuple[Segment, Entry]]:
        return [(s, entry) for s in self.segments for entry in s.entries.values()]

    def names_of(self, mapping: Mapping) -> set[str]:
        """Return the names by which a process may send a segment."""
        return {entry.name for entry in mapping.owned()} or set(mapping.via)

    def fresh_names(self, segment: Segment) -> list[str]:
        """Return the actual names of a segment that are not in the model."""
        known = {entry.name for entry in segment.entries.values() if entry.state != GONE}
        return [n for n, inode in self.look().items() if inode == segment.inode and n not in known]

    # expectations

    def state(self, segment: Segment, name: str, source: Mapping) -> str:
        """Return whether a segment can be found by the address that `source` gave."""
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
        """Compare the names in /dev/shm with those of the model."""
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
                    raise Wrong(f"segment {segment.number} has an unknown name: {name}")
                segment.entries[name] = Entry(name, segment.family, set(), MAYBE)
        if self.alone and found and not self.ghosts:
            raise Wrong(f"unknown segments: {sorted(map(sorted, found.values()))}")

    def reason(self, segment: Segment, entry: Entry) -> str:
        owners = sorted(mapping.actor.name for mapping in entry.owners)
        alive = sorted(actor.name for actor in self.members(entry.family))
        return (
            f"it is a name of segment {segment.number}, owned by {owners or 'no process'}, "
            f"and its family is kept alive by {alive}"
        )
