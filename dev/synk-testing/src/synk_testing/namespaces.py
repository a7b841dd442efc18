"""Programs in namespaces of their own, where the system allows that."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Tuple


def in_private(command: str, *flags: str) -> Tuple[str, ...]:
    """Return the prefix of programs in a private mount namespace, after a command; or skip."""
    import pytest

    user = () if os.geteuid() == 0 else ("-r",)
    prefix = ("unshare", *user, "-m", *flags, "sh", "-c", f'{command} && exec "$@"', "sh")
    if shutil.which("unshare") is None:
        pytest.skip("needs the unshare command, for a file system of its own")
    trial = subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=30)
    if trial.returncode:
        pytest.skip(f"this system allows no private namespaces: {trial.stderr.decode()[:80]}")
    return prefix
