"""The four versions agree with what each package says of itself and of its siblings."""

from __future__ import annotations

import importlib
import re

import pytest
from _checkout import PACKAGES, ROOT, project
from packaging.requirements import Requirement
from packaging.version import Version


@pytest.mark.parametrize("folder", PACKAGES)
def test_module_and_distribution_agree(folder: str) -> None:
    module = importlib.import_module(project(folder)["name"].replace("-", "_"))
    assert module.__version__ == project(folder)["version"]


@pytest.mark.parametrize("folder", PACKAGES)
def test_changelog_tells_of_this_version(folder: str) -> None:
    version = project(folder)["version"]
    changelog = (ROOT / "packages" / folder / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[?v?([0-9][^\]\s]*)", changelog, flags=re.MULTILINE)
    assert version in headings
    assert headings == sorted(headings, key=Version, reverse=True)


@pytest.mark.parametrize("folder", PACKAGES)
def test_ranges_admit_the_siblings_and_pin_none(folder: str) -> None:
    versions = {project(other)["name"]: project(other)["version"] for other in PACKAGES}
    described = project(folder)
    requirements = [Requirement(text) for text in described.get("dependencies", [])]
    for requirement in requirements:
        if requirement.name in versions:
            assert requirement.specifier.contains(versions[requirement.name], prereleases=True)
            operators = {specifier.operator for specifier in requirement.specifier}
            assert operators & {">=", "~="}, f"{requirement}: a range with a lower end"
            assert "==" not in operators, f"{requirement}: a range, not a pin"


def test_the_meta_package_brings_all_the_others() -> None:
    names = {Requirement(text).name for text in project("synk-extensions")["dependencies"]}
    assert {"synk-shm", "synk-comm", "synk-theano"} <= names


@pytest.mark.parametrize(
    ("folder", "allowed", "refused"),
    [
        ("synk-shm", ["3.9", "3.11", "3.13"], ["3.8"]),
        ("synk-comm", ["3.9", "3.11", "3.13"], ["3.8"]),
        ("synk-theano", ["3.9", "3.11", "3.14"], ["3.8", "3.15"]),
        ("synk-extensions", ["3.9", "3.11", "3.14"], ["3.8", "3.15"]),
    ],
)
def test_supported_pythons(folder: str, allowed: list[str], refused: list[str]) -> None:
    specifier = Requirement("x" + project(folder)["requires-python"]).specifier
    assert [version for version in allowed if not specifier.contains(version)] == []
    assert [version for version in refused if specifier.contains(version)] == []
