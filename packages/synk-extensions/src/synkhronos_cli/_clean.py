"""``synkhronos clean``: remove the shared memory segments of dead processes."""

from __future__ import annotations

import click
from rich.markup import escape

from ._terminal import console, fail, in_units, print_json


def run_clean(*, dry_run: bool, json: bool) -> None:
    """Remove the segments of this user whose processes have all ended, and print their names."""
    try:
        import synk_shm
    except ImportError as error:
        fail(f"clean needs synk-shm, which cannot be imported: {error}", 1)
    stale = {one.name: one.nbytes for one in synk_shm.list() if not one.alive and not one.mine}
    if not dry_run:
        synk_shm.cleanup()
    left = {one.name for one in synk_shm.list()} & set(stale)
    if json:
        found = [
            {"name": name, "nbytes": nbytes, "removed": name not in left}
            for name, nbytes in stale.items()
        ]
        print_json({"dry_run": dry_run, "found": found})
    else:
        out = console()
        for name, nbytes in stale.items():
            did = "would remove" if dry_run else "not removed:" if name in left else "removed"
            out.print(f"{did} segment {escape(name)}, {in_units(nbytes)}")
        if not stale:
            out.print("Nothing is stale.")
    if left and not dry_run:
        raise click.exceptions.Exit(1)
