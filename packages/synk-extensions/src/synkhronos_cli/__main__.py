"""``python -m synkhronos_cli``: the command ``synkhronos`` if no script is installed."""

from __future__ import annotations

from synkhronos_cli import main

main()
