"""Load the libraries for NCCL, and give each rank a device of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from synk_comm._system.liveness import Identity, identity
from synk_comm._system.machine import machine_name
from synk_comm.abc import Communicator
from synk_comm.cuda import CudaError, Driver
from synk_comm.exceptions import CommError, JoinError, PeerDeclined


class MissingLibrary(CommError, ImportError):
    """nccl4py or NCCL is not installed."""


class NcclSettings(NamedTuple):
    """Settings of a communicator, which its splits inherit: the arguments of ``nccl``."""

    stream: int | None
    device: int | None
    binding: Any
    driver: Any
    why: str


def load_binding() -> Any:
    """Return nccl4py's low-level binding, checked to find NCCL itself."""
    try:
        binding = importlib.import_module("nccl.bindings.nccl")
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


def introduce(
    host: Communicator, settings: NcclSettings
) -> tuple[Any, Any, int, Sequence[Identity]]:
    """Load the libraries on all ranks; return binding, driver, device, and the ranks' processes.

    Raises:
        MissingLibrary, CudaError, ValueError: of this rank; JoinError for those of other ranks,
            and for differences between them.
    """
    try:
        binding, driver = settings.binding or load_binding(), settings.driver or Driver()
        uuids = tuple([driver.uuid(number) for number in range(driver.device_count())])
        if not uuids:
            raise CudaError("this process sees no CUDA device; see CUDA_VISIBLE_DEVICES")
        wanted = driver.current_device() if settings.device is None else settings.device
        if wanted is not None and not 0 <= wanted < len(uuids):
            raise ValueError(f"device must be 0 to {len(uuids) - 1}, got {wanted}")
        version = int(binding.get_version())
    except (CommError, ValueError) as exc:
        host.decline(f"{type(exc).__name__}: {exc}")
        raise
    mine = machine_name(), wanted, uuids, version, identity()
    try:
        machines, wishes, devices, versions, processes = zip(*host.all_gather_object(mine))
    except PeerDeclined as exc:
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in exc.reasons.items())
        raise JoinError(f"rank {host.rank} cannot start NCCL, because of{lines}") from None
    if len(set(versions)) > 1:
        lines = ", ".join(f"rank {rank}: {version}" for rank, version in enumerate(versions))
        raise JoinError(f"the ranks have different versions of NCCL ({lines}); install one of them")
    return binding, driver, _devices(machines, wishes, devices)[host.rank], processes


def _devices(
    machines: Sequence[str], wishes: Sequence[int | None], uuids: Sequence[Sequence[str]]
) -> list[int]:
    """Return each rank's device: the one that it asked for, else by turns on each machine."""
    devices: list[int] = []
    users: dict[str, int] = {}
    for rank, (machine, wanted, own) in enumerate(zip(machines, wishes, uuids)):
        place = machines[:rank].count(machine)
        device = place % len(own) if wanted is None else wanted
        first = users.setdefault(own[device], rank)
        if first != rank:
            raise JoinError(
                f"ranks {first} and {rank} would both use the GPU {own[device]} (device "
                f"{device} of rank {rank}), but NCCL needs one for each rank; start fewer ranks, "
                "or give each its own by device= or CUDA_VISIBLE_DEVICES"
            )
        devices.append(device)
    return devices
