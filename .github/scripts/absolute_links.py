"""Make a package's links, in README.md and pyproject.toml, lead to the repository at a release's
tag.

    python .github/scripts/absolute_links.py synk-shm https://github.com/OWNER/NAME synk-shm-v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELATIVE = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


def absolute(text: str, folder: str, repository: str, tag: str) -> str:
    """Return the text of a package's README with absolute links; ValueError names a broken one."""

    def replaced(found: re.Match[str]) -> str:
        picture, before, link, anchor = found.groups(default="")
        if not link:  # within the page
            return found[0]
        target = (ROOT / "packages" / folder / link).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            raise ValueError(f"{folder}/README.md: {link} leads nowhere")
        kind = "raw" if picture else "tree" if target.is_dir() else "blob"
        place = target.relative_to(ROOT).as_posix()
        return f"{picture}{before}{repository}/{kind}/{tag}/{place}{anchor})"

    return RELATIVE.sub(replaced, text)


def addresses(folder: str, repository: str, tag: str) -> str:
    """Return the table of pyproject.toml that leads from the index to the project."""
    return f"""
[project.urls]
Homepage = "{repository}"
Documentation = "{repository}/blob/{tag}/docs/index.md"
Changelog = "{repository}/blob/{tag}/packages/{folder}/CHANGELOG.md"
Issues = "{repository}/issues"
"""


def main(folder: str, repository: str, tag: str) -> None:
    """Rewrite both files of one package."""
    package = ROOT / "packages" / folder
    readme = (package / "README.md").read_text(encoding="utf-8")
    (package / "README.md").write_text(absolute(readme, folder, repository, tag), encoding="utf-8")
    with (package / "pyproject.toml").open("a", encoding="utf-8") as settings:
        settings.write(addresses(folder, repository, tag))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ValueError as fault:
        sys.exit(f"error: {fault}")
