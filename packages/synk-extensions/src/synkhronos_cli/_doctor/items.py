"""What the doctor finds: items with a state and a cure, collected in a report."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

GOOD, WARNING, MISSING = "good", "warning", "missing"

# Cures that need neither root nor an answer: a whole command, and nothing after it.
_COMMAND = re.compile(r"(pip install|python -m synk_theano_compat --install|synkhronos clean)\b")
_MODULES = {"pip": "pip", "synkhronos": "synkhronos_cli"}


@dataclass(frozen=True)
class Item:
    """One thing that was examined.

    Args:
        name: Such as ``cuDNN``.
        state: ``good``; ``warning`` if it works but could be better; ``missing`` if this machine
            needs it, and it is absent or does not work.
        found: What was found, in words.
        cure: The command to type, or what else to do, if it is not good.
    """

    name: str
    state: str
    found: str
    cure: str = ""

    @property
    def broken(self) -> bool:
        """True if it is needed and missing."""
        return self.state == MISSING

    @property
    def fix(self) -> list[str]:
        """The cure as a command line with this Python; empty if a person has to do it."""
        if self.state == GOOD or not _COMMAND.match(self.cure):
            return []
        program, *rest = shlex.split(self.cure)
        module = _MODULES.get(program)
        return [sys.executable, *(["-m", module, *rest] if module else rest)]


@dataclass
class DoctorReport:
    """Sections of items, in the order in which they are printed, and Theano's flags."""

    sections: dict[str, list[Item]] = field(default_factory=dict)
    flags: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def broken(self) -> list[Item]:
        """The items that are needed and missing."""
        return [item for item in self.items if item.broken]

    @property
    def items(self) -> list[Item]:
        """All items, in order."""
        return [item for items in self.sections.values() for item in items]

    def as_json(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            "ok": not self.broken,
            "sections": {
                name: [{**asdict(item), "needed": item.broken} for item in items]
                for name, items in self.sections.items()
            },
            "flags": self.flags,
        }
