"""Write and remove ``synk_theano_compat.pth`` in this environment's site-packages.

The wheel brings the file along. An editable installation does not, nor does a folder on
``PYTHONPATH``; this is for them.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

NAME = "synk_theano_compat.pth"


def pth_path() -> Path:
    """Return where the file belongs in this environment."""
    return Path(sysconfig.get_path("purelib"), NAME)


def pth_text() -> str:
    """Return the file's one line, as it is in the wheel."""
    return (
        'import os; os.environ.get("SYNK_THEANO_COMPAT") != "0" and '
        '__import__("synk_theano_compat._hook")._hook.install()\n'
    )


def write_pth() -> bool:
    """Write the file; return False if it was there already."""
    path = pth_path()
    if path.exists() and path.read_text() == pth_text():
        return False
    path.write_text(pth_text())
    return True


def remove_pth() -> bool:
    """Remove the file; return False if there was none."""
    try:
        pth_path().unlink()
    except FileNotFoundError:
        return False
    return True
