"""Before NCCL starts: libraries are loaded, and each rank gets a device of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from synk_comm._system.liveness import Identity, identity
from synk_comm._system.machine import machine_name
from synk_comm.cuda import CudaError, Driver
from synk_comm.exceptions import CommError, JoinError

BINDING = "nccl.bindings.nccl"


class MissingLibrary(CommError, ImportError):
    """What the back-end needs is not installed."""


def load_binding() -> Any:
    """Return nccl4py's low-level binding, checked to find NCCL itself."""
    try:
        binding = importlib.import_module(BINDING)
    except ImportError as exc:
        raise MissingLibrary(
            f"back-end nccl needs the package nccl4py ({exc}): pip install 'synk-comm[nccl]', "
            "with Python 3.10 or newer"
        ) from exc
    try:
        binding.get_version()
    except Exception as exc:
        raise MissingLibrary(
            f"NCCL itself, libnccl.so.2, was not found ({exc}): pip install nvidia-nccl-cu13, or "
            "nvidia-nccl-cu12 for CUDA 12, or name its folder in LD_LIBRARY_PATH"
        ) from exc
    return binding


class Introduction(NamedTuple):
    """One rank's libraries and devices, for the others before NCCL starts."""

    problem: str
    machine: str
    wanted: int | None
    uuids: Sequence[str]
    version: int
    process: Identity


def introduce(
    load: Callable[[], tuple[Any, Driver]], device: int | None
) -> tuple[Introduction, BaseException | None, Any, Any]:
    """Load the libraries and describe this rank; a failure is sent to the others first."""
    blank = Introduction("", machine_name(), device, (), 0, identity())
    try:
        binding, driver = load()
        uuids = [driver.uuid(number) for number in range(driver.device_count())]
        if not uuids:
            raise CudaError("this process sees no CUDA device; see CUDA_VISIBLE_DEVICES")
        wanted = driver.current_device() if device is None else device
        if wanted is not None and not 0 <= wanted < len(uuids):
            raise ValueError(f"device must be 0 to {len(uuids) - 1}, got {wanted}")
        version = int(binding.get_version())
    except (CommError, ValueError) as exc:
        return blank._replace(problem=f"{type(exc).__name__}: {exc}"), exc, None, None
    mine = blank._replace(wanted=wanted, uuids=tuple(uuids), version=version)
    return mine, None, binding, driver


def assign(all_said: Sequence[Introduction]) -> list[int]:
    """Return each rank's device: the one it asked for, else by turns on each machine.

    Raises:
        JoinError: two ranks would share a device, which NCCL does not support.
    """
    devices: list[int] = []
    users: dict[str, int] = {}
    for rank, said in enumerate(all_said):
        place = sum(other.machine == said.machine for other in all_said[:rank])
        device = place % len(said.uuids) if said.wanted is None else said.wanted
        first = users.setdefault(said.uuids[device], rank)
        if first != rank:
            raise JoinError(
                f"ranks {first} and {rank} would both use the GPU {said.uuids[device]} (device "
                f"{device} of rank {rank}), but NCCL needs one for each rank; start fewer ranks, "
                "or give each its own by device= or CUDA_VISIBLE_DEVICES"
            )
        devices.append(device)
    return devices


def raise_problems(problems: Sequence[str], rank: int, mine: BaseException | None) -> None:
    """Raise the own problem, or else name those of the others."""
    if mine is not None:
        raise mine
    lines = "".join(f"\n  rank {who}: {text}" for who, text in enumerate(problems) if text)
    if lines:
        raise JoinError(f"rank {rank} cannot start NCCL, because of{lines}")


def check_versions(versions: Sequence[int]) -> None:
    """Raise JoinError unless all ranks have the same version of NCCL."""
    if len(set(versions)) > 1:
        said = ", ".join(f"rank {rank}: {version}" for rank, version in enumerate(versions))
        raise JoinError(f"the ranks have different versions of NCCL ({said}); install one of them")
