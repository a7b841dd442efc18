"""The free shared memory, checked before it is used."""

from __future__ import annotations

import contextlib
import errno
import os

from synk_shm.exceptions import ShmFullError

ANONYMOUS = "anonymous memory"
_LARGE = 32 << 20  # asking for the machine's free memory costs more than a small segment


def space(where: str) -> tuple[int, int] | None:
    """Return (free, total) bytes of the file system at `where`; None if it has no limit."""
    try:
        status = os.statvfs(where)
    except (OSError, AttributeError):
        return None
    if not status.f_blocks:  # a tmpfs mounted with size=0
        return None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def check_space(asked: int, where: str) -> None:
    """Raise `ShmFullError` if `asked` bytes are surely too many.

    The file system's limit is one bound. The machine's and the container's memory is
    another: beyond it, allocating would not fail, but the kernel would kill a process.
    """
    found = space(where)
    if found is not None and asked > found[0]:
        raise full_error(asked, where)
    if asked >= _LARGE:
        free = _memory_left()
        if free is not None and asked > free:
            raise ShmFullError(
                errno.ENOMEM,
                f"asked for {_bytes(asked)} of shared memory, but only {_bytes(free)} of RAM, "
                "swap and the container's allowance are left; free some or ask for less",
                where,
            )


def limit_of(name: str) -> int:
    """Return this process's limit of a resource."""
    import resource

    return resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]


def full_error(asked: int, where: str, number: int = errno.ENOSPC) -> ShmFullError:
    """Return the error for a full file system, or another limit: what there is, and the cure."""
    found = space(where)
    if number == errno.EFBIG:
        state = f"the limit of file sizes holds for it: {limit_of('FSIZE')} (raise it: ulimit -f)"
    elif number == errno.ENOMEM:
        state = "this process may map no more memory (raise ulimit -v, or sysctl vm.max_map_count)"
    elif found is None:
        state = "the system has no more"
    else:
        state = f"{_bytes(found[0])} are free of {_bytes(found[1])} in total"
    cure = (
        'remove segments (synk_shm.list(), synk_shm.cleanup()), use backend="memfd", or make '
        "it larger (docker run --shm-size=..., Kubernetes: an emptyDir of medium Memory, "
        f"else: mount -o remount,size=... {where})"
    )
    if where == ANONYMOUS or number in (errno.EFBIG, errno.ENOMEM):
        cure = "free some memory or ask for less"
    return ShmFullError(number, f"asked for {_bytes(asked)} in {where}: {state}; {cure}", where)


def _memory_left() -> int | None:
    bounds = [_machine_left(), _container_left()]
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known else None


def _machine_left() -> int | None:
    left = None
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith(("MemAvailable:", "SwapFree:")):
                left = (left or 0) + int(line.split()[1]) * 1024
    return left


def _container_left() -> int | None:
    """Return the bytes left to this process's control group; file pages count as free."""
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        with open("/proc/self/cgroup") as lines:
            group = next(line.rstrip("\n")[3:] for line in lines if line.startswith("0::"))
        folder = "/sys/fs/cgroup" + group
        limit = _read(os.path.join(folder, "memory.max"))
        if limit != "max":
            used = int(_read(os.path.join(folder, "memory.current")))
            with open(os.path.join(folder, "memory.stat")) as lines:
                fields = dict(line.split() for line in lines)
            cache = int(fields.get("inactive_file", 0)) + int(fields.get("active_file", 0))
            return max(0, int(limit) - used + cache)
    return None


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _bytes(count: int) -> str:
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    if power == 0:
        return f"{count} bytes"
    unit = ("KiB", "MiB", "GiB", "TiB")[power - 1]
    return f"{count / 1024**power:.1f} {unit} ({count} bytes)"
