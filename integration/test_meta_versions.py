"""The versions agree with what each package says of itself and of its siblings."""

from __future__ import annotations

import re

import pytest
from _checkout import PACKAGES, ROOT, project
from packaging.requirements import Requirement
from packaging.version import Version


@pytest.mark.parametrize("folder", PACKAGES)
def test_module_and_distribution_agree(folder: str) -> None:
    name = project(folder)["name"].replace("-", "_")
    name = {"theano_compat": "synk_theano_compat"}.get(name, name)
    text = (ROOT / "packages" / folder / "src" / name / "__init__.py").read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE) == [project(folder)["version"]]


@pytest.mark.parametrize("folder", PACKAGES)
def test_changelog_describes_this_version(folder: str) -> None:
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
    described = [Requirement(text) for text in project("synk-extensions")["dependencies"]]
    others = {project(folder)["name"] for folder in PACKAGES[:-1]}
    # That one comes with synk-theano.
    assert others - {"theano-compat"} <= {one.name for one in described}


@pytest.mark.parametrize("python", [f"3.{minor}" for minor in range(9, 15)])
def test_each_python_gets_the_adapter_that_supports_it(python: str) -> None:
    described = [Requirement(text) for text in project("synk-extensions")["dependencies"]]
    adapters = {
        one.name
        for one in described
        if one.name in ("synk-theano", "synk-pytensor")
        and (one.marker is None or one.marker.evaluate({"python_version": python}))
    }
    supporting = {
        name
        for name in ("synk-theano", "synk-pytensor")
        if Requirement("x" + project(name)["requires-python"]).specifier.contains(python)
    }
    assert adapters == supporting
    assert len(adapters) == 1
