"""A Slurm of two simulated hosts, from Debian's packages, of which nothing is installed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _checkout import ROOT, ran
from hostbench.network import Hosts, hosts

from synk_testing import Program
from synk_testing.mpi import SETTINGS
from synk_testing.program import Source

UNPACKED = Path(os.environ.get("SYNK_SLURM", ROOT / "build/slurm"))
"""Debian's packages, unpacked; what is not there is downloaded."""

_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("libmunge2", "libhwloc15", "liblz4-1", "libnuma1", "libpam0g", "libreadline8"),
)
_LIBRARIES = UNPACKED / "usr/lib/x86_64-linux-gnu"
_PLUGINS = _LIBRARIES / "slurm-wlm"
_DOWNLOAD_S, _START_S = 120, 60.0

_CONFIGURATION = """
ClusterName=simulated
SlurmctldHost=h1
AuthType=auth/none
CredType=cred/none
SlurmUser=root
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={binding}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=pmi2
NodeName={names} CPUs={cores} RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
_CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


@functools.cache
def missing() -> str:
    """Return why there can be no Slurm here; "" if there is one, which is downloaded if need be."""
    if (UNPACKED / "usr/bin/srun").exists():
        return ""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "Slurm's packages are Debian's, which this system has no apt-get and dpkg for"
    packages = UNPACKED / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    get = ("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *_PACKAGES)
    how = {"cwd": packages, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(get, timeout=_DOWNLOAD_S, **how)
    if done.returncode:
        return f"Slurm's packages cannot be had: {done.stderr.strip()[-200:]}"
    for package in packages.glob("*.deb"):
        subprocess.run(("dpkg", "-x", package, UNPACKED), check=True)
    return "" if (UNPACKED / "usr/bin/srun").exists() else "Slurm's packages have no srun"


def pid_of(program: Program, rank: int) -> int | None:
    for pid in program.members():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"synkhronos._running" in words and b"PMI_RANK=%d" % rank in variables:
                return pid
    return None


def facts(text: str) -> list[dict[str, Any]]:
    """Return what a program has said in lines of JSON after an "@"."""
    return [json.loads(line[1:]) for line in text.splitlines() if line.startswith("@")]


class Cluster:
    """A running Slurm: its hosts, and the environment of its commands, and so of the ranks."""

    def __init__(self, made: Hosts) -> None:
        self.hosts = made
        libraries = (str(_PLUGINS), str(_LIBRARIES), SETTINGS["LD_LIBRARY_PATH"])
        self.environment = {
            "SLURM_CONF": str(made.folder / "slurm.conf"),
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PATH": f"{UNPACKED}/usr/bin:{os.environ['PATH']}",
            # MPICH's addresses by UCX can be longer than Slurm 22.05 reads of a line.
            "MPIR_CVAR_CH4_NETMOD": "ofi",
        }

    def command(self, name: str, *arguments: str) -> list[str]:
        return [*self.hosts.on("h1"), str(UNPACKED / "usr/bin" / name), *arguments]

    def program(self, source: Source, *arguments: object, starts: Sequence[str]) -> Program:
        """Return a program that ranks run; `starts` is Slurm's command, up to their program."""
        name, *options = starts
        prefix = self.command(name, *options)
        environment = {**self.environment, "THEANO_FLAGS": "linker=py,optimizer=fast_compile"}
        return Program(source, *arguments, prefix=prefix, environment=environment)

    def ran(self, name: str, *arguments: str) -> str:
        environment = {**os.environ, **self.environment}
        done = ran(*self.command(name, *arguments), env=environment, timeout=60)
        return f"{done.stdout}{done.stderr}"

    def wait_until_idle(self) -> None:
        """Wait until no job is left, and all hosts could take one."""
        until = time.monotonic() + _START_S
        while set(self.ran("sinfo", "-h", "-N", "-o", "%t").split()) != {"idle"}:
            if time.monotonic() > until:
                logs = [file.read_text()[-2000:] for file in self.hosts.folder.glob("*.log")]
                raise OSError("\n".join(["Slurm is not ready:", self.ran("sinfo"), *logs]))
            time.sleep(0.1)


@contextlib.contextmanager
def cluster(cores: int = 4, binding: str = "task/none") -> Iterator[Cluster]:
    """Yield a Slurm of two hosts, of so many cores as it believes; kill all of it at the end."""
    with hosts(2) as made:
        slurm = Cluster(made)
        names = ",".join(made.names)
        settings = {"plugins": _PLUGINS, "folder": made.folder, "binding": binding}
        configuration = _CONFIGURATION.format(names=names, cores=cores, **settings)
        (made.folder / "slurm.conf").write_text(configuration)
        (made.folder / "cgroup.conf").write_text(_CGROUPS)
        (made.folder / "state").mkdir()
        binaries = UNPACKED / "usr/sbin"
        daemons = [(made.names[0], [binaries / "slurmctld-wlm"])]
        for name in made.names:
            step = ["-N", name, "-d", binaries / "slurmstepd-wlm"]
            daemons.append((name, [binaries / "slurmd-wlm", *step]))
        # They become daemons, which the host's first process takes with it.
        for name, words in daemons:
            command = [*made.on(name, inside=True), *map(str, words)]
            environment = {**os.environ, **slurm.environment}
            done = ran(*command, env=environment, timeout=60)
            if done.returncode:
                raise OSError(f"{words[0]}: {done.stdout}{done.stderr}")
        slurm.wait_until_idle()
        yield slurm
