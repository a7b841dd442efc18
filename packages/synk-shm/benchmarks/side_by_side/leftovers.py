"""Count what killed processes leave; see whether a full /dev/shm kills."""

from __future__ import annotations

from typing import Any

from synk_benchmarks.results import Cell, Row

from . import sandbox
from .bench import Bench, counts
from .contenders import OURS

ROOMY = "4g"  # a limit, not memory; joblib uses /dev/shm from 2 GB on


def leaks(bench: Bench) -> list[Row]:
    """Count arrays left after kill -9 of the creator, of its group, and after a normal exit."""
    wait_s = 1.0 if bench.quick else 3.0
    names = [contender.name for contender in bench.contenders if contender.can_leak]
    alone = bool(sandbox.prefix(ROOMY))
    where = "" if alone else "in the common /dev/shm, where other programs may have cleaned up"
    made: list[Row] = []
    titles = {
        "creator": "left: kill -9 of creator",
        "group": "left: kill -9 of its group",
        "exit": "left: exit, no unlink",
    }
    for how, label in titles.items():
        bench.say(label)
        found = sandbox.run("leave", how, wait_s, *names, size=ROOMY, limit_s=120)
        made.append(counts(bench, f"left/{how}", label, _cells(bench, found, "left", where)))
        if how == "exit":
            cells = _cells(bench, found, "complaints", where)
            made.append(counts(bench, "left/complaints", "lines on stderr then", cells))
        else:
            cells = _cells(bench, found, "after", where)
            made.append(counts(bench, f"left/{how}-next", "  after the next start", cells))
    return made


def overfill(bench: Bench) -> list[Row]:
    """Ask for 4 times what /dev/shm has: 1 is a death by signal, 0 an error to catch."""
    size = f"{sandbox.TOO_SMALL_MIB}m"
    label = "dies of a full /dev/shm"
    if not sandbox.prefix(size):
        reason = "needs a private mount namespace"
        cells = {contender.name: Cell(note=reason) for contender in bench.contenders}
        return [counts(bench, "sigbus/dies", label, cells)]
    cells = {}
    for contender in bench.contenders:
        bench.say(f"{label}: {contender.name}")
        if not contender.can_leak:
            cells[contender.name] = Cell(note="private memory")
            continue
        # Each has one of its own: a killed process leaves it full.
        answer = sandbox.run("overfill", contender.name, size=size, limit_s=90)
        if "skipped" in answer:
            cells[contender.name] = Cell(note=answer["skipped"])
        else:
            cells[contender.name] = Cell((float(answer["died"]),), answer["outcome"])
    return [counts(bench, "sigbus/dies", label, cells)]


def _cells(bench: Bench, found: dict[str, Any], what: str, where: str) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for contender in bench.contenders:
        answer = found.get(contender.name)
        if answer is None:
            cells[contender.name] = Cell(note="nothing to leave")
            continue
        notes = [where] if contender.name == OURS and what != "complaints" else []
        if what == "left":
            notes += [
                f"and {answer[kind]} {text}"
                for kind, text in (("crumbs", "smaller files"), ("helpers", "of its processes"))
                if answer[kind]
            ]
        cells[contender.name] = Cell((float(answer[what]),), "; ".join(filter(None, notes)))
    return cells
