"""Print flight records: what every rank did before a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, Optional

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from synkhronos_cli._terminal import console, fail, in_units, print_json

from .file import files, folder, load, local_time, printable

_Key = tuple[int, int]
"""Identifies an act: the number of its order, and its place in that."""

_WIDTH_OF_RANK = 36
_WIDTH_OF_ACT = 44


def show_flight(file: Optional[str], last: int, *, json: bool) -> None:
    """Print a record.

    Args:
        file: Its path, or its name in the folder; None for the newest.
        last: Number of orders to print.
        json: Print the whole record as JSON instead.
    """
    path = _path_of(file)
    if path is None:
        if json:
            print_json(None)
        else:
            _plainly(console())(f"No flight records in {escape(str(folder()))}: nothing failed.")
        return
    try:
        record = load(path)
    except FileNotFoundError:
        fail(f"no such record: {file}; synkhronos flight --list shows all")
    except (OSError, ValueError) as error:
        fail(str(error))
    if json:
        print_json(record)
    else:
        _print(path, printable(record), last)


def list_flights(*, json: bool) -> None:
    """List all records, newest first."""
    found = [(path, _read(path)) for path in files()]
    if json:
        print_json([_in_short(path, record) for path, record in found])
        return
    out = console()
    _plainly(out)(f"{len(found)} flight records in {escape(str(folder()))}")
    table = Table(box=None, pad_edge=False)
    for column in ("file", "when", "program", "what failed"):
        table.add_column(column, overflow="fold", no_wrap=column == "file")
    for path, record in found:
        short = _in_short(path, record)
        what = f"{short['error']}{_of_rank(short['rank'])}" if short["error"] else "not readable"
        program = escape(printable(short["program"]))
        table.add_row(path.name, short["when"], program, escape(printable(what)))
    if found:
        out.print(table)


def _path_of(file: Optional[str]) -> Optional[Path]:
    if file is None:
        return next(iter(files()), None)
    path = Path(file)
    return path if path.exists() or path.name != file else folder() / file


def _read(path: Path) -> dict[str, Any]:
    """Return a record; an empty one if it cannot be read, so that the others are listed."""
    try:
        return load(path)
    except (OSError, ValueError):
        return {}


def _in_short(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    error = record.get("error", {})
    return {
        "file": str(path),
        "when": local_time(record["when"]) if record else "",
        "program": " ".join(record.get("program", [])),
        "error": error.get("type", ""),
        "rank": error.get("rank"),
    }


# ---- one record ----------------------------------------------------------------------------------


def _print(path: Path, record: dict[str, Any], last: int) -> None:
    out = console()
    error = record["error"]
    say = _plainly(out)
    say(f"[bold]{escape(str(path))}[/]")
    on_host = f" on host {escape(record['host'])}" if record["host"] else ""
    say(
        f"{local_time(record['when'])}, {escape(' '.join(record['program']))} "
        f"(process {record['pid']}{on_host}), {record['size']} ranks"
    )
    say("")
    say(f"[bold red]{escape(error['type'])}{_of_rank(error['rank'])}[/]")
    say(escape(error["message"]))
    say("")
    _print_doing(out, record)
    say("")
    _print_acts(out, record, last)
    for rank, stack in record["stacks"].items():
        say("")
        say(f"[bold]Stack of rank {escape(rank)}[/]")
        say(escape(stack.rstrip()))


def _plainly(out: Console) -> Any:
    """Return a function that prints lines unwrapped: wrapped tracebacks are hard to read."""
    return lambda text: out.print(text, soft_wrap=True)


def _print_doing(out: Console, record: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "process", "was"):
        table.add_column(column)
    for rank in record["ranks"]:
        style = "red" if rank["rank"] == record["error"]["rank"] else None
        name = _name(rank["rank"], record)
        table.add_row(name, str(rank["pid"]), escape(rank["doing"]), style=style)
    out.print(table)


def _print_acts(out: Console, record: dict[str, Any], last: int) -> None:
    """Print the last acts, with as many ranks side by side as fit into the terminal."""
    acts = {rank["rank"]: _by_key(rank["records"]) for rank in record["ranks"]}
    every = sorted({key for one in acts.values() for key in one})
    if not every:
        out.print("No rank has received an order.")
        return
    orders = sorted({order for order, _ in every})[-last:]
    keys = [key for key in every if key[0] in orders]
    at_once = max((out.width - _WIDTH_OF_ACT) // _WIDTH_OF_RANK, 1)
    ranks = list(acts)
    for begin in range(0, len(ranks), at_once):
        if begin:
            out.print()
        out.print(_table_of_acts(record, acts, keys, ranks[begin : begin + at_once]))


def _by_key(records: list[dict[str, Any]]) -> dict[_Key, dict[str, Any]]:
    found: dict[_Key, dict[str, Any]] = {}
    for act in records:
        place = 0
        while (act["order"], place) in found:
            place += 1
        found[act["order"], place] = act
    return found


def _table_of_acts(
    record: dict[str, Any],
    acts: dict[int, dict[_Key, dict[str, Any]]],
    keys: list[_Key],
    ranks: list[int],
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    head = f"{'when':>9} {'took':>8} {'rows':>6}  outcome"
    table.add_column("\norder", justify="right", no_wrap=True)
    table.add_column("\nact", overflow="fold")
    table.add_column("\nbytes", justify="right", no_wrap=True)
    for rank in ranks:
        table.add_column(f"rank {_name(rank, record)}\n{head}", no_wrap=True)
    table.add_column("\n", no_wrap=True)
    for key in keys:
        known = next(one[key] for one in acts.values() if key in one)
        marks = list(_marks(key, acts, record["error"] if key[0] == keys[-1][0] else {}))
        table.add_row(
            str(key[0]) if key[1] == 0 else "",
            escape(known["act"]),
            in_units(known["bytes"]),
            *(_cell(key, acts[rank]) for rank in ranks),
            ", ".join(marks),
            style="red" if marks else None,
        )
    return table


def _cell(key: _Key, acts: dict[_Key, dict[str, Any]]) -> str:
    act = acts.get(key)
    if act is None:
        return f"{'':27}{_absence(key, acts)}"
    took = "" if act["seconds"] is None else _in_seconds(act["seconds"])
    rows = act["rows"] or ""
    return f"{_in_seconds(act['began_s']):>9} {took:>8} {rows:>6}  {escape(act['outcome'])}"


def _absence(key: _Key, acts: dict[_Key, dict[str, Any]]) -> str:
    """Return why a rank has no record of an act: only its last acts are kept."""
    if not acts or key > max(acts):
        return "not begun"
    return "not kept" if key < min(acts) else ""


def _marks(
    key: _Key, acts: dict[int, dict[_Key, dict[str, Any]]], error: dict[str, Any]
) -> Iterator[str]:
    """Yield which ranks failed in an act, and which are behind the others.

    Args:
        error: The record's error, if this is the order in which it happened.
    """
    outcomes = {
        rank: one[key]["outcome"] if key in one else _absence(key, one)
        for rank, one in acts.items()
    }
    cause = error.get("rank")
    if cause is not None and outcomes.get(cause) == "under way":
        # It died here, or kept the others waiting: their failures follow from that.
        yield f"<- rank {cause}: {error['type']}"
        return
    finished = "done" in outcomes.values()
    for rank, outcome in outcomes.items():
        if outcome == "failed":
            yield f"<- rank {rank} failed"
        elif finished and outcome in ("under way", "not begun"):
            yield f"<- rank {rank} is behind"


# ---- words ---------------------------------------------------------------------------------------


def _name(rank: int, record: dict[str, Any]) -> str:
    return f"{rank} (master)" if rank == record["master"] else str(rank)


def _of_rank(rank: Optional[int]) -> str:
    return "" if rank is None else f" of rank {rank}"


def _in_seconds(seconds: float) -> str:
    size = abs(seconds)
    if size >= 1.0:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if size >= 1e-3 else f"{1e6 * seconds:.0f} us"
