"""The device sets on which the tests run, and why one cannot be used on this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from synk_testing import job_command, why_no_mpi

PROBE_S = 120
MEMORY_GRACE_S = 20
# The driver's own bookkeeping comes and goes; a context takes hundreds.
NOISE_MIB = 64
# In a process of its own: a device that was opened stays open.
PROBE = """
import json, os, sys
found = {"cuda": 0, "opencl": False, "why": {}}
# Libraries may write to the standard output; the answer must be alone there.
answer = os.dup(1)
os.dup2(2, 1)
try:
    import theano
    import synk_theano
    from pygpu import gpuarray
except Exception as error:
    found["why"] = dict.fromkeys(("cuda", "opencl"), f"pygpu cannot be imported: {error}")
else:
    try:
        found["cuda"] = int(gpuarray.count_devices("cuda", 0))
    except Exception as error:
        found["why"]["cuda"] = f"no CUDA device: {type(error).__name__}: {error}"
    try:
        gpuarray.init("opencl0:0")
        found["opencl"] = True
    except Exception as error:
        found["why"]["opencl"] = f"no OpenCL device: {type(error).__name__}: {error}"
os.write(answer, json.dumps(found).encode())
"""

# Gives a rank its GPU, and has NCCL believe in the hosts; then it is the program that follows.
APART = """
import os, sys
rank, host = int(os.environ["PMI_RANK"]), os.environ["PMI_HOSTNAME"]
visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(rank + 1)))
os.environ.update(CUDA_VISIBLE_DEVICES=visible.split(",")[rank], NCCL_HOSTID=host)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class DeviceSet:
    """Ranks and their devices.

    `devices` are Theano's names, one per rank; () for what ``use_gpu`` gives. If MPI starts the
    ranks, on so many `hosts`, all are this machine, and MPI believes in them. A GPU belongs to one
    rank alone then, and NCCL goes over the network.
    """

    name: str
    kind: str
    ranks: int
    devices: tuple[str, ...] = ()
    hosts: int = 0

    @property
    def fork_arguments(self) -> dict[str, Any]:
        if self.devices:
            return {"devices": list(self.devices)}
        if self.hosts:
            return {"use_gpu": True, "nccl": True} if self.kind == "cuda" else {"use_gpu": False}
        return {"n_parallel": self.ranks, "use_gpu": self.kind != "cpu"}

    def command(self, module: str) -> list[str]:
        """What runs a Python module, whose arguments follow, with all ranks."""
        if not self.hosts:
            return [sys.executable, "-m", module]
        per_host = -(-self.ranks // self.hosts)
        program = [sys.executable, "-m", "synkhronos._running", "-m", module]
        apart = [sys.executable, "-c", APART] if self.kind == "cuda" else []
        return [*job_command(self.ranks, per_host), *apart, *program]

    @property
    def needs_cuda(self) -> int:
        return len(set(self.devices)) or self.ranks if self.kind == "cuda" else 0


SETS = {
    each.name: each
    for each in (
        DeviceSet("cpu-2", "cpu", 2),
        DeviceSet("hosts-4", "cpu", 4, hosts=2),
        DeviceSet("opencl-2", "opencl", 2, ("opencl0:0",) * 2),
        DeviceSet("opencl-1", "opencl", 1, ("opencl0:0",)),
        DeviceSet("cuda-1", "cuda", 1),
        DeviceSet("cuda-2", "cuda", 2),
        DeviceSet("cuda-4", "cuda", 4),
        DeviceSet("cuda-hosts-2", "cuda", 2, hosts=2),
        DeviceSet("cuda-shared-2", "cuda", 2, ("cuda0",) * 2),
    )
}


@functools.cache
def found() -> dict[str, Any]:
    """The devices of this machine: how many GPUs, whether OpenCL; and why not."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        why = f"looking for devices failed: {error}"
        answer = {"cuda": 0, "opencl": False, "why": dict.fromkeys(("cuda", "opencl"), why)}
    return answer


def missing(device_set: DeviceSet) -> str | None:
    """Why the set cannot be used here, or None if it can."""
    if device_set.hosts and why_no_mpi():
        return why_no_mpi()
    if device_set.kind == "cpu":
        return None
    here = found()
    if device_set.kind == "opencl":
        return None if here["opencl"] else here["why"].get("opencl", "no OpenCL device")
    if here["cuda"] >= device_set.needs_cuda:
        return None
    return here["why"].get("cuda") or (
        f"{device_set.needs_cuda} GPUs are needed, {here['cuda']} found"
    )


def memory_used() -> list[int]:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) for line in done.stdout.split()]


def wait_for_memory(before: list[int]) -> str:
    """Wait until no GPU has more memory in use than before; what is left, in words, if it has."""
    deadline = time.monotonic() + MEMORY_GRACE_S
    while True:
        after = memory_used()
        if all(now <= then + NOISE_MIB for now, then in zip(after, before)):
            return ""
        if time.monotonic() > deadline:
            return f"memory in use, MiB on each GPU: {before} before, {after} after"
        time.sleep(0.5)
