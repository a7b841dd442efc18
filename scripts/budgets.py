"""Count the lines of code, and the words of the pages, beside what scripts/budgets.json allows.

python scripts/budgets.py            the table
python scripts/budgets.py --lower    and make budgets of all that has become less
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "scripts" / "budgets.json"
KINDS = {
    "src": "lines of Python in packages/*/src",
    "python": "lines of other Python",
    "words": "words of Markdown",
}


def counted() -> dict[str, dict[str, int]]:
    """Return, for each kind and each place, what there is in the files that git knows."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in KINDS}
    for name in set(names.split("\0")) - {""}:
        file = ROOT / name
        if file.suffix not in (".py", ".pyi", ".md") or not file.is_file():
            continue
        folders = Path(name).parent.parts
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            kind, count = "words", len(text.split())
        else:
            kind = "src" if folders[:1] == ("packages",) and folders[2:3] == ("src",) else "python"
            count = text.count("\n")
        is_package = folders[:1] == ("packages",)
        depth = 3 if is_package and kind == "python" else 2 if is_package else 1
        found[kind]["/".join(folders[:depth]) or "."] += count
    return {
        kind: {"all": sum(places.values()), **dict(sorted(places.items()))}
        for kind, places in found.items()
    }


def excess(budgets: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each place that has more than its budget, and for each kind."""
    return [
        f"{KINDS[kind]}, {place}: {now}, {now - budgets[kind].get(place, 0)} more than the budget"
        for kind, places in counted().items()
        for place, now in places.items()
        if now > budgets[kind].get(place, 0)
    ]


def main(arguments: list[str]) -> int:
    """Print the table; lower it if that is asked for."""
    budgets = json.loads(BUDGETS.read_text(encoding="utf-8"))
    for kind, places in counted().items():
        print(f"{KINDS[kind]:<40} {'now':>8} {'budget':>8}")
        for place, now in places.items():
            print(f"  {place:<38} {now:>8} {budgets[kind].get(place, 0):>8}")
        if "--lower" in arguments:
            known = budgets[kind]
            budgets[kind] = {
                place: min(now, known.get(place, now)) for place, now in places.items()
            }
    if "--lower" in arguments:
        BUDGETS.write_text(json.dumps(budgets, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
