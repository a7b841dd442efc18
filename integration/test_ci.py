"""The workflows are well formed and know the packages that are really there."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from _checkout import PACKAGES, ROOT, project, ran, tomllib
from packaging.requirements import Requirement

SCRIPT = ROOT / ".github/scripts/changed_packages.py"
ALL = list(PACKAGES)
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def answers(*paths: str, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    done = ran(sys.executable, SCRIPT, *arguments, input="\n".join(paths), check=True)
    assert done.stderr == ""
    lines = [line.partition("=") for line in done.stdout.splitlines()]
    return {key: json.loads(value) for key, _, value in lines}


def workflow(name: str) -> dict[Any, Any]:
    loaded = yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], []),
        (
            ["packages/theano-compat/tests/test_hook.py"],
            ["theano-compat", "synk-theano", "synk-extensions"],
        ),
        (["packages/synk-shm/src/synk_shm/_arrays/constructors.py"], ["synk-shm", *ALL[3:]]),
        (["packages/synk-comm/README.md"], ALL[2:]),
        (["packages/synk-core/tests/test_plan.py"], ALL[3:]),
        (["packages/synk-theano/tests/test_linking.py"], ["synk-theano", "synk-extensions"]),
        (["packages/synk-extensions/pyproject.toml"], ALL[6:]),
        (["packages/synk-comm/a.py", "packages/synk-shm/a.py"], ALL[1:]),
        (["packages/a-new-one/a.py"], ALL),
        (["pyproject.toml"], ALL),
        ([".github/workflows/ci.yml"], ALL),
        (["README.md", "docs/index.md", "docs/conf.py"], []),
        (["integration/test_ci.py", "benchmarks/synk_benchmarks/rounds.py"], []),
        (["packages/synk-extensions/src/synkhronos_examples/intro.py"], ALL[6:]),
        (["docs/index.md", "packages/synk-pytensor/LICENSE"], ALL[5:]),
    ],
)
def test_a_change_asks_for_its_package_and_all_after(paths: list[str], expected: list[str]) -> None:
    answer = answers(*paths)
    assert answer["packages"] == expected
    # The order of a first appearance is the order of the layers.
    assert list(dict.fromkeys(job["package"] for job in answer["matrix"]["include"])) == expected


def test_a_change_of_the_tooling_asks_for_its_tests() -> None:
    for path in ("scripts/run_tests.py", "packages/synk-shm/pyproject.toml", "docs/index.md"):
        assert answers(path)["tooling"] is True
    for path in ("packages/synk-shm/src/synk_shm/__init__.py", "packages/synk-shm/README.md"):
        assert answers(path)["tooling"] is False


def test_all_packages_can_be_asked_for() -> None:
    assert answers(arguments=("--all",))["packages"] == ALL
    assert answers(arguments=("--all",))["tooling"] is True
    assert sorted(ALL) == sorted(p.parent.name for p in ROOT.glob("packages/*/pyproject.toml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_jobs_with_steps_and_a_limit(path: Path) -> None:
    loaded = workflow(path.name)
    assert loaded["jobs"]
    assert loaded["permissions"] == {"contents": "read"}, "the least by default"
    for name, job in loaded["jobs"].items():
        assert job["steps"], name
        assert job["timeout-minutes"] <= (350 if path.stem == "nightly" else 60), name


def test_the_gate_waits_for_every_other_job_that_must_not_fail() -> None:
    jobs = workflow("ci.yml")["jobs"]
    gate = jobs["gate"]
    optional = {name for name, job in jobs.items() if job.get("continue-on-error")}
    assert optional == {"newest-pytensor"}
    assert set(gate["needs"]) == set(jobs) - {"gate"} - optional
    assert gate["if"] == "always()", "a skipped gate would count as success"


def test_each_job_installs_its_packages_on_a_supported_python() -> None:
    jobs = answers(arguments=("--all",))["matrix"]["include"]
    for package in ALL:
        described = project(package)
        pythons = [job["python"] for job in jobs if job["package"] == package]
        supported = Requirement("x" + described["requires-python"]).specifier
        assert supported.contains(pythons[0])
        assert not supported.contains(f"3.{int(pythons[0][2:]) - 1}"), "the oldest is among them"
        assert all(supported.contains(python) for python in pythons)
        assert all(
            f"Programming Language :: Python :: {python}" in described["classifiers"]
            for python in pythons
        )
    names = {project(package)["name"]: package for package in ALL}
    for job in jobs:
        described = [Requirement(text) for text in project(job["package"])["dependencies"]]
        needed = {
            one.name
            for one in described
            if one.marker is None or one.marker.evaluate({"python_version": job["python"]})
        }
        siblings = {f"packages/{names[name]}" for name in needed & set(names)}
        members = set(job["members"].split())
        assert siblings | {f"packages/{job['package']}"} <= members
        if "packages/synk-core" in members:
            assert len(members & {"packages/synk-theano", "packages/synk-pytensor"}) == 1, job
        for member in members:
            supported = project(member.removeprefix("packages/"))["requires-python"]
            assert Requirement("x" + supported).specifier.contains(job["python"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the release workflow runs Python 3.11")
def test_a_release_tag_has_to_be_true() -> None:
    script = ROOT / ".github/scripts/released_package.py"
    for package in ALL:
        described = project(package)
        answer = ran(sys.executable, script, f"{described['name']}-v{described['version']}")
        assert answer.stdout == f"folder={package}\n", answer.stderr
    for wrong in ("synk-shm-v99.0.0", "synk-extensions-v2.0.0", "synk-shm", "v0.1.0"):
        answer = ran(sys.executable, script, wrong)
        assert answer.returncode == 1
        assert answer.stderr.startswith("error: ")


def test_a_released_readme_links_to_the_repository(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("_build", "__pycache__", "*.so")
    for folder in ("packages", "docs", ".github"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    script = tmp_path / ".github/scripts/absolute_links.py"
    repository = "https://github.com/owner/name"
    files = 0
    for folder in ALL:
        ran(sys.executable, script, folder, repository, "v1", check=True)
        package = tmp_path / "packages" / folder
        described = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
        readme = (package / "README.md").read_text("utf-8")
        links = re.findall(r"\]\(([^)\s]*)\)", readme)
        links += described["urls"].values()
        assert [link for link in links if not link.startswith(("https://", "#"))] == []
        places = [re.fullmatch(rf"{repository}/(?:blob|raw)/v1/([^#]*).*", link) for link in links]
        assert all((ROOT / place[1]).is_file() for place in places if place)
        files += sum(place is not None for place in places)
        assert re.findall(r"!\[[^\]]*\]\((?!https://[^)]*/raw/)", readme) == []
    assert files > 30
    (tmp_path / "packages/synk-shm/README.md").write_text("[lost](docs/lost.md)")
    answer = ran(sys.executable, script, "synk-shm", repository, "v1")
    assert answer.stderr == "error: synk-shm/README.md: docs/lost.md leads nowhere\n"


def test_the_release_makes_links_absolute_before_it_builds() -> None:
    steps = workflow("release.yml")["jobs"]["build"]["steps"]
    (commands,) = (step["run"] for step in steps if "poetry build" in step.get("run", ""))
    assert "absolute_links.py" in commands.partition("poetry build")[0]
