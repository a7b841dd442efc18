"""What the doctor finds: items with a state and a cure, joined to a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

GOOD, WARNING, MISSING = "good", "warning", "missing"


@dataclass(frozen=True)
class Item:
    """One thing that was looked at.

    Args:
        name: What it is, e.g. ``cuDNN``.
        state: ``good``; ``warning``, if everything works but not as well as it could; ``missing``,
            if it is not there or does not work.
        found: What was found, in words.
        cure: What to type or to do, if it is not good.
        needed: True if this machine cannot be used as it is without this.
    """

    name: str
    state: str
    found: str
    cure: str = ""
    needed: bool = False

    @property
    def broken(self) -> bool:
        """True if it is needed and missing."""
        return self.needed and self.state == MISSING


@dataclass
class Report:
    """Sections of items, in the order in which they are told, and Theano's flags."""

    sections: dict[str, list[Item]] = field(default_factory=dict)
    flags: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def broken(self) -> list[Item]:
        """The items that are needed and missing."""
        return [item for items in self.sections.values() for item in items if item.broken]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON's kinds of values."""
        return {
            "ok": not self.broken,
            "sections": {
                name: [asdict(item) for item in items] for name, items in self.sections.items()
            },
            "flags": self.flags,
        }
