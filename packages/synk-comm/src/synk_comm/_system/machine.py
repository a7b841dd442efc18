"""Which machine this process is on."""

from __future__ import annotations

import contextlib
import os


def machine_name() -> str:
    """Return the name of the running kernel."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return os.uname().nodename
