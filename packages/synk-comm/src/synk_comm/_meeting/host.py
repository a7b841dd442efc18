"""Where a rank runs: what decides how ranks can reach each other."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple, Sequence

from synk_comm._system.liveness import identity


class Host(NamedTuple):
    """Where one rank runs; sent to all ranks when they meet.

    Attributes:
        machine: names the running kernel (its boot id on Linux).
        network: names the network namespace; 0 if unknown.
        processes: names the pid namespace; 0 if unknown.
        user: effective user id.
        address: the numeric address at which other ranks can reach this one; "" if the ranks
            meet in a folder.
        no_memory: why this rank must not share memory; "" if it may.
    """

    machine: str
    network: int
    processes: int
    user: int
    address: str
    no_memory: str

    def near(self, other: Host) -> bool:
        """Return whether two ranks are on one machine, with no network between them."""
        mine = (self.machine, self.network, self.address)
        return mine == (other.machine, other.network, other.address)


def this_host(address: str = "") -> Host:
    """Describe the calling process."""
    forbidden = os.environ.get("SYNK_COMM_SHM", "1") == "0"
    return Host(
        machine=_boot_id(),
        network=_inode("/proc/self/ns/net"),
        processes=identity().namespace,
        user=os.geteuid(),
        address=address,
        no_memory="SYNK_COMM_SHM is 0" if forbidden else "",
    )


def apart(hosts: Sequence[Host]) -> str:
    """Return why these ranks cannot share memory, in words; "" if they can, as far as is known."""
    first = hosts[0]
    elsewhere = [rank for rank, host in enumerate(hosts) if host.machine != first.machine]
    foreign = [rank for rank, host in enumerate(hosts) if host.user != first.user]
    for ranks, words in ((elsewhere, "on another host"), (foreign, "as another user")):
        if ranks:
            verb = "runs" if len(ranks) == 1 else "run"
            return f"{name_ranks(ranks)} {verb} {words} than rank 0"
    for rank, host in enumerate(hosts):
        if host.no_memory:
            return f"rank {rank} must not share memory ({host.no_memory})"
    return ""


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, or ``ranks 1, 2``."""
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"node {platform.node()}"


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
