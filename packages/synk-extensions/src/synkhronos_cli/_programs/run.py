"""``synkhronos run``: a script on all ranks of an MPI launcher."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import List, NoReturn, Sequence, Tuple

import click

from synkhronos_cli._doctor.mpi import OPEN_MPI, family_of
from synkhronos_cli._terminal import fail

from .launch import replace, script_path


def run_script(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a rank that runs a script, or waits for orders.

    Args:
        arguments: the script and its arguments, or "-m", a module and its arguments.
    """
    if arguments[0] != "-m":
        script_path(arguments[0])
    replace(["-m", "synkhronos._running", *arguments], {})


def start_on(hosts: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the site's launcher, which starts ranks on these hosts.

    Args:
        hosts: as in "a:4,b:4".
        arguments: see `run_script`.
    """
    command = [*launcher_command(_parsed(hosts)), sys.executable, "-m", "synkhronos._running"]
    command += arguments
    click.echo(f"+ {' '.join(command)}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(command[0], command)  # noqa: S606 - no shell


def launcher_command(hosts: Sequence[Tuple[str, int]]) -> List[str]:
    """Return the command that starts ranks on these hosts, up to the program."""
    count = str(sum(ranks for _, ranks in hosts))
    if os.environ.get("SLURM_JOB_ID") and shutil.which("srun"):
        each = {ranks for _, ranks in hosts}
        if len(each) > 1:
            fail("--hosts: in a Slurm job each host needs as many ranks as the others")
        names = ",".join(name for name, _ in hosts)
        per_host = f"--ntasks-per-node={each.pop()}"
        return ["srun", "--kill-on-bad-exit=1", f"--nodelist={names}", per_host, "-n", count]
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        fail("--hosts: there is no mpiexec on PATH; pip install mpich, or use the site's MPI")
    listed = ",".join(f"{name}:{ranks}" for name, ranks in hosts)
    family, version = family_of(mpiexec)
    if not family:
        fail(
            f"--hosts: {mpiexec} is neither MPICH's nor Open MPI's ({version}); start the ranks as "
            f"this cluster does: {os.path.basename(mpiexec)} -n {count} synkhronos run ..."
        )
    if family == OPEN_MPI:
        # Without binding: each rank would get one core.
        return [mpiexec, "--host", listed, "-n", count, "--with-ft", "ulfm", "--bind-to", "none"]
    return [mpiexec, "-hosts", listed, "-n", count]


def _parsed(hosts: str) -> List[Tuple[str, int]]:
    """Return names and numbers of ranks, or exit with one line."""
    found = []
    for part in hosts.split(","):
        match = re.fullmatch(r"(\w[\w.-]*)(?::([1-9]\d*))?", part.strip())
        if match is None:
            fail(f"--hosts {hosts}: got {part!r}, expected a host and its ranks, as in a:4")
        found.append((match[1], int(match[2] or 1)))
    return found
