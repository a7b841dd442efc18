"""Find what is stale, remove it, and print the result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from synkhronos_cli._terminal import console, in_units, print_json

from . import leftovers
from .leftovers import Leftover


def run_clean(*, dry_run: bool, theano_cache: bool, json: bool) -> int:
    """Find what is stale, remove it, and print the result; return the exit status.

    Args:
        dry_run: Only list it.
        theano_cache: Also remove Theano's compiled modules, which Theano can build again.
        json: Print one JSON object instead of a table.
    """
    segments, problem = leftovers.find_segments()
    others = [*leftovers.find_socket_folders(), *leftovers.find_locks()]
    if theano_cache:
        others += leftovers.find_compiled_modules()
    # All segments at once: synk_shm decides again which of them are stale.
    failed = leftovers.remove_segments() if segments and not dry_run else ""
    results = [(one, failed) for one in segments]
    results += [(one, "" if dry_run else _remove(one)) for one in others]
    if json:
        print_json(_as_json(results, problem, dry_run))
    else:
        _print_table(results, problem, dry_run)
    failed_any = any(error for one, error in results if one.removable)
    return 1 if problem or failed_any else 0


def _remove(one: Leftover) -> str:
    return leftovers.remove(one) if one.removable else "not removed"


def _as_json(results: list[tuple[Leftover, str]], problem: str, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "problem": problem,
        "found": [
            {**asdict(one), "removed": not dry_run and one.removable and not error, "error": error}
            for one, error in results
        ],
    }


def _print_table(results: list[tuple[Leftover, str]], problem: str, dry_run: bool) -> None:
    out = console()
    if problem:
        out.print(f"[yellow]Segments could not be listed: {escape(problem)}[/]")
    if not results:
        out.print("Nothing is stale.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "why", "size"):
        table.add_column(column, overflow="fold")
    for one, error in results:
        size = in_units(one.nbytes) if one.nbytes else ""
        table.add_row(_sign(one, error, dry_run), escape(one.name), escape(one.why), size)
    out.print(table)
    for one, error in results:
        if one.removable and error:
            out.print(f"[red]{escape(one.name)}: {escape(error)}[/]")
        elif not one.removable:
            out.print(f"If its owner has ended: rm -r {escape(one.name)}")


def _sign(one: Leftover, error: str, dry_run: bool) -> str:
    if not one.removable:
        return f"[yellow]kept {one.kind}[/]"
    if dry_run:
        return f"would remove {one.kind}"
    return f"[red]not removed: {one.kind}[/]" if error else f"[green]removed {one.kind}[/]"
