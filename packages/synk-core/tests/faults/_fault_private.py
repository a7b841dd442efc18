"""Programs with mounts of their own, where the system allows them."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Tuple

import pytest


def private_prefix(command: str) -> Tuple[str, ...]:
    """The prefix of programs that have a mount namespace of their own.

    Skips the test, with the reason, where that is not allowed.

    Args:
        command: runs there first, as root of the namespace.
    """
    user = () if os.geteuid() == 0 else ("-r",)
    prefix = ("unshare", *user, "-m", "sh", "-c", f'{command} && exec "$@"', "sh")
    if shutil.which("unshare") is None:
        pytest.skip("needs the unshare command, for a small file system of its own")
    trial = subprocess.run([*prefix, "true"], capture_output=True, timeout=30)
    if trial.returncode:
        pytest.skip(f"this system allows no private mounts: {trial.stderr.decode()[:80]}")
    return prefix
