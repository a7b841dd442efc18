"""The outcome of each command: a second implementation of the life cycle, in one process.

Each command is a generator of the same name. It yields the outcomes that are allowed ("ok"
or the exact class of the error), is sent the actual one (or `DIED`), and updates the
model. It raises `Wrong` if result and model differ.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import values
from life import DIED, OK, Life, Wrong
from state import GONE, MAYBE, THERE, Actor, Address, Mapping, Message, Segment

MISSING, EXISTS, FULL = "ShmNotFoundError", "ShmExistsError", "ShmFullError"
LATE, VALUE, BUFFER, RUNTIME = "ShmTimeoutError", "ValueError", "BufferError", "RuntimeError"

Command = Generator[set[str], tuple[str, Any], None]


class Model(Life):
    """The commands on arrays; those on processes are in `Life`."""

    # create and use

    def create(self, who: str, var: str, shape: Any, dtype: str, **arguments: Any) -> Command:
        actor = self.actors[who]
        how, options = arguments["how"], arguments["options"]
        name = options.get("name")
        taken = {e.state for _, e in self.entries() if e.user and e.name == f"/synk.u.{name}"}
        allowed = {EXISTS} if THERE in taken else {OK, EXISTS} if MAYBE in taken else {OK}
        outcome, result = yield allowed
        if outcome == DIED:
            self.ghosts = True
            self.retired.add(name)
            return
        self.arm(actor)
        if outcome == EXISTS:
            return
        kind = np.dtype(values.DTYPES[dtype])
        order = options.get("order", "C")
        source = np.asarray(values.pattern(kind, shape, arguments["seed"]), order=order)
        fortran = order == "F" if how != "share" else not source.flags.c_contiguous
        backend = options.get("backend", "shm")
        segment = self.add_segment(actor, backend, kind, shape, fortran, result["capacity"])
        mapping = self.map(actor, segment, readonly=False, owner=True)
        self.name(segment, result["name"], actor, mapping)
        if name is not None:
            self.name(segment, f"/synk.u.{name}", actor, mapping, user=True)
        self.hold(actor, var, segment.whole(), mapping, result)
        if how == "share":
            segment.whole()[...] = source
        rows = options.get("capacity")
        if rows is not None and result["capacity"] < rows * segment.row_bytes():
            raise Wrong(f"capacity {result['capacity']} for {rows} rows")

    def create_too_big(self, who: str, **_: Any) -> Command:
        outcome, _ = yield {FULL}
        if outcome != DIED:
            self.arm(self.actors[who], certainly=False)

    def view(self, who: str, var: str, new: str, spec: Any) -> Command:
        actor = self.actors[who]
        outcome, result = yield {OK}
        if outcome == OK:
            old = actor.vars[var]
            self.hold(actor, new, values.apply_view(old.array, spec), old.mapping, result)

    def read(self, who: str, var: str) -> Command:
        holding = self.actors[who].vars[var]
        outcome, result = yield {OK}
        if outcome == OK:
            self.check_array(holding, result)
            self.check_bytes(holding, result["bytes"])

    def write(self, who: str, var: str, seed: int) -> Command:
        holding = self.actors[who].vars[var]
        outcome, _ = yield {VALUE} if holding.mapping.readonly else {OK}
        known = holding.mapping.segment.known_bytes(holding.array)
        if outcome == OK:
            array = holding.array
            array[...] = values.pattern(array.dtype, array.shape, seed)
            known[...] = True
        elif outcome == DIED:
            known[...] = False

    def resize(self, who: str, var: str, new: str, length: int) -> Command:
        actor, holding = self.actors[who], self.actors[who].vars[var]
        mapping, segment = holding.mapping, holding.mapping.segment
        needed = length * segment.row_bytes()
        able = mapping.owner and not (mapping.closed or mapping.readonly or segment.fortran)
        if not able or not segment.shape or segment.shape != holding.array.shape:
            allowed = {VALUE}
        elif holding.array.size == 0:
            allowed = {OK, VALUE}  # the address of an array without elements is arbitrary
        else:
            allowed = {OK} if segment.is_whole(holding.array) else {VALUE}
        outcome, result = yield allowed
        if outcome == DIED:
            segment.vague = self.ghosts = True
            for entry in mapping.owned():
                if entry.user:
                    entry.state = MAYBE
                    self.retired.add(entry.name[len("/synk.u.") :])
        if outcome != OK:
            return
        old = holding.array
        moved = result["moved"]
        nameless = mapping.unlinked or segment.states() == {GONE}
        if moved != (needed > segment.capacity) and not (moved and nameless):
            raise Wrong(f"{'moved' if moved else 'stayed'}: {needed} of {segment.capacity} bytes")
        if moved:
            shape = (length, *segment.shape[1:])
            target = self.add_segment(
                actor, segment.backend, segment.dtype, shape, False, result["capacity"]
            )
            kept = target.whole()[: len(old)]
            kept[...] = old[:length]
            target.known_bytes(kept)[...] = segment.known_bytes(old[:length])
            segment = target
            fresh = self.map(actor, target, readonly=False, owner=True)
            self.name(target, result["name"], actor, fresh)
            for entry in [e for e in mapping.owned() if e.user and e.state != GONE]:
                self.name(target, entry.name, actor, fresh, user=True).state = entry.state
                entry.state = GONE
            mapping = fresh
        segment.shape = (length, *segment.shape[1:])
        self.hold(actor, new, segment.whole(), mapping, result)

    def close(self, who: str, var: str) -> Command:
        mapping = self.actors[who].vars[var].mapping
        others = mapping.arrays() > 1
        outcome, _ = yield {BUFFER} if others and not mapping.closed else {OK}
        if outcome == BUFFER or mapping.closed:
            return
        if mapping.owner:
            mapping.segment.forget_names(GONE if outcome == OK else MAYBE)
        self.release(mapping, outcome)

    def unlink(self, who: str, var: str) -> Command:
        mapping = self.actors[who].vars[var].mapping
        if mapping.segment.backend == "memfd":
            gone = mapping.unlinked
            outcome, _ = yield {OK, MISSING} if mapping.closed else {MISSING} if gone else {OK}
        else:
            outcome, _ = yield self.removable(mapping.segment.states())
            mapping.segment.forget_names(MAYBE if outcome == DIED else GONE)
        mapping.unlinked = True

    def unlink_name(self, who: str, name: str) -> Command:
        found = [(s, e) for s, e in self.entries() if e.name == f"/synk.u.{name}"]
        outcome, _ = yield self.removable({entry.state for _, entry in found})
        for segment, entry in found:
            if entry.state != GONE:
                segment.forget_names(MAYBE if outcome == DIED else GONE)

    def drop(self, who: str, names: list[str]) -> Command:
        actor = self.actors[who]
        outcome, _ = yield {OK}
        for var in names:
            mapping = actor.vars.pop(var).mapping
            if not mapping.arrays():
                self.release(mapping, outcome)
                actor.mappings.remove(mapping)

    def lock(self, who: str, var: str) -> Command:
        actor = self.actors[who]
        mapping = actor.vars[var].mapping
        segment = mapping.segment
        holder = next((a for a in self.actors.values() if segment in a.locks.values()), None)
        allowed = self.reachable(mapping)
        if holder is actor and RUNTIME not in allowed and VALUE not in allowed:
            others = {m for m in actor.mappings if m.segment is segment} != {mapping}
            allowed = allowed - {OK} | {RUNTIME} | ({LATE} if others else set())
        elif holder is actor:
            allowed = allowed | {RUNTIME}
        elif holder is not None and OK in allowed:
            allowed = allowed - {OK} | {LATE}
        outcome, _ = yield allowed
        if outcome == OK:
            actor.locks[var] = segment

    def unlock(self, who: str, var: str) -> Command:
        outcome, _ = yield {OK}
        if outcome == OK:
            del self.actors[who].locks[var]

    # send and attach

    def handle(self, who: str, var: str, new: str) -> Command:
        holding = self.actors[who].vars[var]
        mapping = holding.mapping
        refused = mapping.closed or mapping.unlinked
        nameless = mapping.segment.states() == {GONE}
        outcome, result = yield {VALUE} if refused else {OK, VALUE} if nameless else {OK}
        if outcome == OK:
            self.addresses[new] = Address(result, holding.array, mapping.segment, mapping)

    def attach(self, who: str, var: str, source: str, readonly: bool) -> Command:
        actor, found = self.actors[who], self.addresses[source]
        state = self.state(found.segment, found.value.name, found.source)
        outcome, result = yield self.attachable(actor, found.segment, state, readonly)
        self.arm(actor, certainly=outcome == OK)
        if outcome == OK:
            mapping = self.map(actor, found.segment, readonly)
            mapping.via.add(found.value.name)
            self.hold(actor, var, found.array, mapping, result)

    def attach_name(self, who: str, var: str, name: str, readonly: bool) -> Command:
        actor = self.actors[who]
        full = f"/synk.u.{name}"
        found = [s for s, e in self.entries() if e.name == full and e.state != GONE]
        if not found:
            outcome, _ = yield {MISSING}
            self.arm(actor, certainly=False)
            return
        segment = found[0]
        certain = segment.entries[full].state == THERE
        outcome, result = yield {OK} if certain else {OK, MISSING}
        self.arm(actor, certainly=outcome == OK)
        if outcome == OK:
            mapping = self.map(actor, segment, readonly)
            mapping.via.add(full)
            self.hold(actor, var, segment.whole(), mapping, result)

    def send(self, who: str, var: str, new: str) -> Command:
        actor = self.actors[who]
        holding = actor.vars[var]
        segment = holding.mapping.segment
        outcome, result = yield self.reachable(holding.mapping)
        self.grant_grace(actor)
        if outcome == DIED:
            segment.ghosts = True
        if outcome != OK:
            return
        data, where = result
        entry = None
        if segment.backend == "shm":
            fresh = self.fresh_names(segment)
            if len(fresh) != 1:
                raise Wrong(f"a message should hold its memory by one name, found {fresh}")
            entry = self.name(segment, fresh[0], actor, None)
        readonly = holding.mapping.readonly
        self.messages[new] = Message(data, holding.array, holding.mapping, entry, where, readonly)

    def recv(self, who: str, var: str, message: str) -> Command:
        actor, sent = self.actors[who], self.messages[message]
        segment, entry = sent.source.segment, sent.entry
        state = self.state(segment, sent.address, sent.source) if entry is None else entry.state
        if entry is not None and state != THERE:
            later = self.state(segment, sent.address, sent.source)
            state = MAYBE if MAYBE in (state, later) else later
        outcome, result = yield self.attachable(actor, segment, state, sent.readonly)
        sent.deliveries += 1
        if outcome == DIED:
            if entry is not None and entry.state != GONE:
                entry.state = MAYBE
            return
        self.arm(actor, certainly=outcome == OK)
        if outcome != OK:
            return
        mapping = self.map(actor, segment, sent.readonly)
        mapping.via.add(sent.address)
        if entry is not None and entry.state != GONE:
            certain = entry.state == THERE and sent.deliveries == 1
            if mapping.owner:
                entry.state = GONE if certain else MAYBE
            elif result["owner"] or certain:
                mapping.owner = True
                entry.owners.add(mapping)
                entry.state = THERE if certain else MAYBE
        self.hold(actor, var, sent.array, mapping, result)

    # expectations

    def removable(self, states: set[str]) -> set[str]:
        return {OK} if THERE in states else {OK, MISSING} if MAYBE in states else {MISSING}

    def attachable(self, actor: Actor, segment: Segment, state: str, readonly: bool) -> set[str]:
        """Return the outcomes of an attach. A process may find its own mapping without a name."""
        if state == THERE:
            return {OK}
        if state == GONE and actor.usable(segment, readonly) is None:
            return {MISSING}
        return {OK, MISSING}

    def reachable(self, mapping: Mapping) -> set[str]:
        """Return the outcomes of a command that needs a name of the segment."""
        if mapping.closed or mapping.unlinked:
            return {VALUE}
        segment = mapping.segment
        if segment.backend == "memfd":
            return {OK}
        if segment.states() == {GONE}:
            return {MISSING, VALUE}
        states = {self.state(segment, name, mapping) for name in self.names_of(mapping)}
        return {OK} if states == {THERE} else {OK, MISSING}
