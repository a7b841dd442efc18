"""Count the devices, assign them to ranks, and take a process's own.

Devices are counted without a CUDA context, so nothing is allocated on them, and the process can
still use any of them later, or none.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from synk_comm import cuda
from synk_comm.processes import available_cores
from synk_core._plan.rows import is_int
from synk_core._wire.world import World
from synk_core.device import DOCTOR, Contexts, Device
from synk_core.engine import DEVICES, TITLE
from synk_core.exceptions import InputTypeError, InputValueError, StartError

USE_GPU = "SYNKHRONOS_USE_GPU"
"""Name of the environment variable that sets the meaning of ``use_gpu=None``: 0 False, 1 True."""

MOST_RANKS = 1024
"""Processes on one machine at most: a larger number is a mistake."""

Devices = Sequence[Union[str, Sequence[str]]]
"""The user's argument: the device of each rank, or a group of devices for each."""


class Assignment(NamedTuple):
    """The number of ranks, and the device of each.

    Attributes:
        devices: the default device of each rank, by name; () for CPU processes.
        lines: lines to report to the user.
        groups: all devices of each rank, if a rank has several.
        hosts: the host of each rank, if an MPI launcher has started them.
        gpus: the uuid of each rank's GPU, where names are not enough: on several hosts.
    """

    size: int
    devices: Tuple[str, ...]
    lines: Tuple[str, ...]
    groups: Tuple[Tuple[str, ...], ...] = ()
    hosts: Tuple[str, ...] = ()
    gpus: Tuple[str, ...] = ()

    def contexts(self, rank: int) -> Contexts:
        """Return the devices of a rank by the names in graphs: dev0, dev1 ... of a group; other
        names that the engine's options define mean the default device."""
        if not self.devices:
            return {}
        default = self.devices[rank]
        known = () if DEVICES is None else DEVICES.named_in_options()
        named: Dict[Optional[str], str] = dict.fromkeys(known, default)
        if self.groups:
            named.update((f"dev{i}", name) for i, name in enumerate(self.groups[rank]))
        return {None: default, **named}

    @property
    def noun(self) -> str:
        """The ranks in words, as in "2 GPUs"."""
        hosts = len(set(self.hosts))
        on_hosts = f" on {hosts} hosts" if hosts > 1 else ""
        if not self.devices:
            return f"{self.size} CPU {'process' if self.size == 1 else 'processes'}{on_hosts}"
        several = [name for group in self.groups for name in group] or self.devices
        kind = "GPU" if all(name.startswith("cuda") for name in several) else "device"
        return f"{len(several)} {kind}{'' if len(several) == 1 else 's'}{on_hosts}"

    @property
    def distinct_gpus(self) -> bool:
        """Whether each rank has a CUDA device to itself, which NCCL needs."""
        cuda_only = all(name.startswith("cuda") for name in self.devices)
        return bool(self.devices) and cuda_only and len(set(self.gpus or self.devices)) == self.size


def choose(
    n_parallel: Optional[int],
    use_gpu: Optional[bool],
    master_rank: int,
    devices: Optional[Devices],
) -> Assignment:
    """Choose the number of ranks and their devices; see `Runtime` for arguments and errors."""
    if devices is not None:
        return _named(devices, n_parallel, use_gpu, master_rank)
    count, lines = _gpus_to_use(use_gpu, usable_gpus)
    cores = available_cores()
    found, most = (count, count) if count else (cores, MOST_RANKS)
    size = found if n_parallel is None else _within(n_parallel, 1, most, "n_parallel")
    master = _within(master_rank, 0, size - 1, "master_rank")
    what = f"{size} of {found} detected {'GPUs' if count else 'CPU cores'}"
    if size > found:
        what = f"{size} processes on {cores} detected CPU cores"
    lines = (*lines, f"Synkhronos attempting to use {what}...")
    if not count:
        return Assignment(size, (), lines)
    names, held = [f"cuda{i}" for i in range(count)], device_in_use()
    if held in names and names[master] != held:
        place = names.index(held)
        names[place], names[master] = names[master], names[place]
        lines += (f"Synkhronos: this process uses {held} already, and keeps it.",)
    return Assignment(size, tuple(names[:size]), lines)


def _gpus_to_use(
    use_gpu: Optional[bool], usable: Callable[[], Tuple[int, str]]
) -> Tuple[int, Tuple[str, ...]]:
    """Return the number of GPUs that ranks can use, 0 for CPU processes, and lines to report;
    `usable` is `usable_gpus`, or like it."""
    if use_gpu is None:
        text = os.environ.get(USE_GPU, "").strip()
        if text not in ("", "0", "1"):
            raise InputValueError(f"environment variable {USE_GPU}: got {text!r}, expected 0 or 1")
        use_gpu = bool(int(text)) if text else None
    count, problem = (0, "") if use_gpu is False else usable()
    cure = "" if DEVICES is None else f"; {DOCTOR}"
    if problem and use_gpu:
        raise StartError(f"use_gpu=True: {problem}{cure}")
    if count and not problem:
        notice = DEVICES.NOTICE if use_gpu is None else ""
        return count, (f"Synkhronos: {notice}",) if notice else ()
    held = device_in_use()
    if held is not None and DEVICES.OWNS_VARIABLES:
        raise StartError(
            f"this process uses {held} already, so its shared variables lie on that device, which "
            f"CPU processes do not have; use devices=[{held!r}, ...], or a new process"
        )
    return 0, (f"Synkhronos: GPUs are not used: {problem}{cure}",) if count else ()


def choose_in_world(
    world: World,
    n_parallel: Optional[int],
    use_gpu: Optional[bool],
    master_rank: int,
    devices: Optional[Devices],
) -> Assignment:
    """Choose the devices of ranks that an MPI launcher has started; see `choose`.

    A rank that sees one GPU alone, another one than its neighbours, uses that; otherwise ranks use
    their host's GPUs in order.
    """
    size = world.size
    if n_parallel not in (None, size):
        raise InputValueError(
            f"n_parallel: got {n_parallel!r}, but the launcher has started {size} processes; leave "
            f"n_parallel out, or start as many as you want (mpiexec -n, srun -n)"
        )
    if master_rank != 0:
        raise InputValueError(
            f"master_rank: got {master_rank!r}, expected 0, as MPI's launchers do"
        )
    hosts = tuple(member.host for member in world.members)
    if devices is not None:
        chosen = _named(devices, None, use_gpu, 0)
        if chosen.size != size:
            raise InputValueError(
                f"devices: got {chosen.size} entries, expected one for each of {size} ranks"
            )
        return chosen._replace(hosts=hosts, gpus=_uuids(world, chosen.devices))
    seen = sum(len(member.gpus) for member in world.members)
    none = "no rank sees a GPU (see CUDA_VISIBLE_DEVICES)"
    count, lines = _gpus_to_use(use_gpu, lambda: (seen, why_no_devices() if seen else none))
    names = _gpus_of(world) if count else ()
    chosen = Assignment(size, names, (), hosts=hosts, gpus=_uuids(world, names))
    line = f"Synkhronos attempting to use {chosen.noun}..."
    return chosen._replace(lines=(*lines, *_about_binding(world), line))


def _gpus_of(world: World) -> Tuple[str, ...]:
    """Return the device of each rank."""
    names = []
    for rank, member in enumerate(world.members):
        near = world.local_ranks(rank)
        seen = [world.members[other].gpus for other in near]
        alone = all(len(gpus) == 1 for gpus in seen) and len(set(seen)) == len(near)
        place = 0 if alone else near.index(rank)
        if place >= len(member.gpus):
            raise StartError(
                f"host {member.host} has {len(member.gpus)} visible GPUs for {len(near)} ranks; "
                f"start as many ranks on each host as it has GPUs, or use use_gpu=False"
            )
        names.append(f"cuda{place}")
    return tuple(names)


def _about_binding(world: World) -> Tuple[str, ...]:
    """Return a line if the launcher has bound ranks to fewer cores than they could have."""
    for rank, member in enumerate(world.members):
        possible = min(member.host_cores, member.quota) // len(world.local_ranks(rank))
        if world.threads(rank) < possible:
            line = (
                f"Synkhronos: the launcher has bound rank {rank} to {world.threads(rank)} of host "
                f"{member.host}'s {member.host_cores} cores, and it could have {possible}: see "
                f"mpiexec --bind-to none, or srun --cpus-per-task"
            )
            return (line,)
    return ()


def _uuids(world: World, names: Sequence[str]) -> Tuple[str, ...]:
    """Return the uuids of the ranks' devices; another name where one is not known."""
    found = []
    for member, name in zip(world.members, names):
        number = name.removeprefix("cuda")
        known = number.isdigit() and int(number) < len(member.gpus)
        found.append(member.gpus[int(number)] if known else f"{name} of {member.host}")
    return tuple(found)


def _named(
    devices: Devices,
    n_parallel: Optional[int],
    use_gpu: Optional[bool],
    master_rank: int,
) -> Assignment:
    entries = devices if isinstance(devices, (list, tuple)) else ()
    groups: List[Any] = [(entry,) if isinstance(entry, str) else entry for entry in entries]
    are_groups = all(isinstance(group, (list, tuple)) and group for group in groups)
    several = [name for group in groups for name in group] if are_groups else []
    if not several or not all(isinstance(name, str) for name in several):
        raise InputTypeError(
            f"devices: got {devices!r}, expected a list of names such as ['cuda0', 'cuda1'], one "
            f"for each rank, or of groups of names such as [('cuda0', 'cuda1'), ('cuda2', 'cuda3')]"
        )
    for name in several:
        if not re.fullmatch(r"cuda\d+|opencl\d+:\d+", name):
            raise InputValueError(
                f"devices: got {name!r}, expected a name such as 'cuda0' or 'opencl0:0'; for CPU "
                f"processes use use_gpu=False"
            )
    size = len(groups)
    if n_parallel not in (None, size) or use_gpu is False:
        raise InputValueError(
            f"devices: got {size} names together with n_parallel={n_parallel}, "
            f"use_gpu={use_gpu}; give devices alone"
        )
    _within(master_rank, 0, size - 1, "master_rank")
    line = f"Synkhronos attempting to use {', '.join(' with '.join(group) for group in groups)}..."
    has_groups = not all(isinstance(entry, str) for entry in entries)
    all_of = tuple(map(tuple, groups)) if has_groups else ()
    return Assignment(size, tuple(group[0] for group in groups), (line,), all_of)


def usable_gpus() -> Tuple[int, str]:
    """Return the number of GPUs, and why the engine cannot use them ("" if it can)."""
    if DEVICES is None:
        return 0, why_no_devices()
    try:
        count = DEVICES.count()
    except cuda.CudaError as error:
        return 0, str(error)
    if not count:
        return 0, "no GPU is visible to this process (see CUDA_VISIBLE_DEVICES)"
    return count, why_no_devices()


def why_no_devices() -> str:
    """Return why the engine's GPU back end cannot be used; "" if it can."""
    if DEVICES is None:
        return f"{TITLE} has no GPU back end of its own, so functions run on the processor"
    return str(DEVICES.why_unusable())


def device_in_use() -> Optional[str]:
    """Return the name of the default device that this process uses already, if there is one."""
    return None if DEVICES is None else DEVICES.in_use()


def take(
    contexts: Contexts, nccl: bool, graphs: str = "never", precision: str = "default"
) -> Device:
    """Take this rank's devices: from now on new shared variables of floats lie on the default one,
    and functions compute there; see `settings` for the other arguments."""
    if not contexts:
        return Device()
    problem = why_no_devices()
    if problem:
        raise StartError(f"device {contexts[None]}: {problem}; {DOCTOR}")
    device: Device = DEVICES.take(contexts, nccl, graphs, precision)
    return device


def choose_nccl(ranks: Assignment, wanted: Optional[bool]) -> Tuple[bool, Tuple[str, ...]]:
    """Return whether collectives go through NCCL, and lines to report about it."""
    if wanted is False or ranks.size == 1 or not (wanted or ranks.devices):
        return False, ()
    if not ranks.devices:
        problem = "there are no GPUs"
    elif not ranks.distinct_gpus:
        problem = "NCCL needs a GPU for each rank"
    else:
        problem = DEVICES.why_no_nccl()
    if not problem:
        return True, ()
    if wanted:
        raise StartError(f"nccl=True: {problem}; {DOCTOR}")
    return False, (f"Synkhronos: collectives go through host memory: {problem}",)


def _within(value: Any, lowest: int, highest: int, what: str) -> int:
    """Return `value` as an int, which has to be in the range."""
    if not is_int(value) or not lowest <= value <= highest:
        raise InputValueError(f"{what}: got {value!r}, expected an int from {lowest} to {highest}")
    return int(value)
