"""What scripts/bootstrap.sh says and does on machines of all kinds, which stand-ins play."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from _checkout import ROOT, ran

SCRIPT = ROOT / "scripts/bootstrap.sh"
TOOLS = ("sh", "dirname", "cat", "cksum", "rm", "grep", "tail", "sleep", "mkdir", "cp")
APT = "apt update && apt install --yes"
DNF = "dnf install --assumeyes"
ZYPPER = "zypper --non-interactive install"
UV = "~/.local/bin/uv python install 3.11"
PIP = "python3 -m pip install --user --break-system-packages uv"
# /etc/os-release; what installs all that is missing; and a Python where the system's is of no use.
SYSTEMS = {
    "debian": (
        "ID=debian\nVERSION_CODENAME=bookworm",
        f"{APT} g++ make python3 python3-venv python3-dev",
        f"{APT} pipx && pipx install uv && {UV}",
    ),
    "rocky": (
        "ID=rocky\nID_LIKE='rhel centos fedora'",
        f"{DNF} gcc-c++ make python3 python3-devel",
        f"{DNF} python3-pip && {PIP} && {UV}",
    ),
    "arch": (
        "ID=arch",
        "pacman -S --needed --noconfirm gcc make python",
        "pacman -S --needed --noconfirm uv && uv python install 3.11",
    ),
    "tumbleweed": (
        "ID=opensuse-tumbleweed\nID_LIKE='opensuse suse'",
        f"{ZYPPER} gcc-c++ make python3 python3-devel",
        f"{ZYPPER} python3-pip && {PIP} && {UV}",
    ),
}
PYTHON = """\
echo "$*" >>"$CALLS"
version=${VERSION:-3.11}
case "$0" in *3.13) version=3.13 ;; esac
case "$1 ${2:-}" in
    "- ") cat >/dev/null; echo "ok $version" ;;
    "-c "*) case "$2" in *ensurepip*) ;; *) echo "$0" ;; esac ;;
    "-m venv") for new; do :; done; mkdir -p "$new/bin" && cp "$0" "$new/bin/python" ;;
    "-m pip") case "${FAIL:+$*}" in *"${ONLY:-}"?*) echo "$FAIL"; exit 3 ;; esac ;;
    --version*) echo "Python $version.9" ;;
esac"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the few tools the script itself uses, to stand for a whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        place = shutil.which(tool)
        assert place, tool
        (folder / tool).symlink_to(place)
    add(folder, "id", "echo 0")
    return folder


@pytest.fixture
def complete(tools: Path) -> Path:
    add(tools, "g++", "true")
    add(tools, "make", "true")
    return tools


def add(folder: Path, name: str, script: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def python_that_answers(path: Path, answer: str) -> None:
    add(path.parent, path.name, f"cat >/dev/null\necho '{answer}'")


def check(folder: Path, system: str = "debian", status: int = 1, **environment: str) -> list[str]:
    """Look for what is missing; return the lines about it, or else of the Python chosen."""
    release = folder / "os-release"
    release.write_text(SYSTEMS.get(system, ("ID=plan9",))[0] + "\n")
    own = {"PATH": str(folder), "HOME": str(folder / "home"), "OS_RELEASE": str(release)}
    done = ran("sh", SCRIPT, "--check", env={**own, **environment})
    said, nothing = (done.stderr, done.stdout) if status else (done.stdout, done.stderr)
    assert (done.returncode, nothing) == (status, ""), said
    return said.splitlines()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_missing_tool_is_named_in_one_line_with_its_cure(tools: Path, system: str) -> None:
    _, all_of_it, python_alone = SYSTEMS[system]
    missing = "missing: g++, make, Python 3.9 to 3.14. Install with: "
    assert check(tools, system) == [missing + all_of_it]
    add(tools, "g++", "true")
    add(tools, "make", "true")
    python_that_answers(tools / "python3", "version")
    (line,) = check(tools, system)
    assert line == f"missing: Python 3.9 to 3.14. Install with: {python_alone}"


def test_an_unknown_system_gets_general_words_and_other_users_sudo(
    tools: Path,
) -> None:
    (line,) = check(tools, "unknown")
    assert line == (
        "missing: g++, make, Python 3.9 to 3.14."
        " Install with the package manager of this system: g++ make;"
        " and then: uv python install 3.11"
    )
    add(tools, "id", "echo 1000")
    (line,) = check(tools)
    assert "sudo apt update && sudo apt install --yes g++ make python3 python3-venv" in line
    assert "sudo dnf install" in check(tools, "rocky")[0]


def test_an_incomplete_or_a_wrong_python_is_named_with_its_cure(complete: Path) -> None:
    python_that_answers(complete / "python3", "lacks 3.11 venv headers")
    (line,) = check(complete)
    assert "the venv module and the C headers of Python 3.11." in line
    assert line.endswith("apt install --yes python3.11-venv python3.11-dev")
    python_that_answers(complete / "python3.11", "ok 3.11")
    (line,) = check(complete, PYTHON="/nonexistent/python")
    assert "Python 3.9 to 3.14 (PYTHON=/nonexistent/python is not one)" in line


LATER = "later * with spaces"


@pytest.mark.parametrize(
    "answers",
    [
        {"python3.11": "no Python", f"{LATER}/python3.11": "ok 3.11"},
        {"home/.local/share/uv/python/cpython-3.11.14-linux-x86_64-gnu/bin/python3.11": "ok 3.11"},
        {
            "python3": "ok 3.13",
            "python3.14": "ok 3.14",
            "home/.pyenv/versions/3.9.18/bin/python": "ok 3.9",
        },
    ],
    ids=["further down PATH", "of uv", "for Theano"],
)
def test_the_best_python_is_taken_wherever_it_is(complete: Path, answers: dict[str, str]) -> None:
    for name, answer in answers.items():
        python_that_answers(complete / name, answer)
    path = os.pathsep.join([str(complete), str(complete / LATER)])
    (line,) = check(complete, status=0, PATH=path)
    assert line.endswith(f"/{name}")


def test_without_a_python_for_theano_a_newer_one_is_for_pytensor(complete: Path) -> None:
    answer = "if [ $1 = --version ]; then echo Python 3.12.1; exit; fi; cat >/dev/null"
    add(complete, "python3", f"{answer}; echo ok 3.12")
    python_that_answers(complete / "python3.11", "lacks 3.11 headers")
    (line, chosen) = check(complete, status=0)
    assert chosen.endswith(f"{complete}/python3")
    cure = f"{APT} python3.11-dev && make clean setup"
    assert line == f"Using PyTensor, on Python 3.12.1. For Theano: {cure}"


class Checkout:
    """A checkout of little more than the script, and a machine that has all that it asks for."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root = root
        self.tools = tools
        add(tools, "python3.11", PYTHON)
        self.log = tools / "calls"
        (root / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPT, root / "scripts")
        shutil.copy(ROOT / "pyproject.toml", root)
        for description in ROOT.glob("*/*/pyproject.toml"):
            folder = root / description.parent.relative_to(ROOT)
            folder.mkdir(parents=True)
            shutil.copy(description, folder)

    def set_up(
        self, root: Path | None = None, option: str = "", **environment: str
    ) -> tuple[str, str, list[str]]:
        """Run the script; return its two outputs, and what it had Python do."""
        self.log.write_text("")
        own = {
            "PATH": str(self.tools),
            "HOME": "/proc",  # where nobody can write
            "CALLS": str(self.log),
            "PWD": str(root or self.root),
        }
        words = ["sh", "scripts/bootstrap.sh", *filter(None, [option])]
        done = ran(*words, cwd=root or self.root, env={**own, **environment})
        assert (done.returncode == 0) == (not done.stderr), (done.returncode, done.stderr)
        calls = self.log.read_text().splitlines()
        return done.stdout, done.stderr, [call for call in calls if call.startswith("-m")]


@pytest.fixture
def checkout(tmp_path: Path, complete: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout * with spaces, ümlauts, 日本", complete)


def test_a_new_checkout_gets_an_environment_and_says_so(checkout: Checkout) -> None:
    said, _, calls = checkout.set_up()
    lines = said.splitlines()
    assert lines[0] == "Creating .venv ..."
    assert lines[-1] == "Ready: Python 3.11.9 in .venv"
    assert len(lines) >= 4
    assert calls[0] == "-m venv --clear .venv"
    pip = [call for call in calls if call.startswith("-m pip install")]
    assert len(pip) == 2
    assert "--retries 1" in pip[0]
    assert "poetry-core" in pip[0]
    assert pip[1].count("--editable packages/") == 6
    assert "--no-build-isolation" in pip[1]
    assert "--group test" in pip[1]
    assert calls[-1] == "-m synk_theano_compat --install"


def test_a_newer_python_alone_gets_an_environment_for_pytensor(checkout: Checkout) -> None:
    checkout.set_up()
    (checkout.root / ".venv" / ".ready").unlink()
    said, _, calls = checkout.set_up(VERSION="3.13")
    assert said.splitlines()[0].startswith("Using PyTensor, on Python 3.13.9. ")
    assert said.splitlines()[-1] == "Ready: Python 3.13.9 in .venv"
    assert calls[0] == "-m venv --clear .venv", "not that of Theano"
    pip = [call for call in calls if call.startswith("-m pip install")]
    assert pip[1].count("--editable packages/") == 5
    assert "--group test-pytensor" in pip[1]
    assert not any("synk_theano_compat" in call or ".venv-newer" in call for call in calls)


def test_a_newer_python_gets_an_environment_without_theano(
    checkout: Checkout,
) -> None:
    add(checkout.tools, "python3.13", PYTHON)
    said, _, calls = checkout.set_up()
    assert "Creating .venv-newer, with Python 3.13" in said
    assert "-m venv --without-pip .venv-newer" in calls
    into = [call for call in calls if call.startswith("-m pip --python .venv-newer/bin/python")]
    assert len(into) == 2
    assert "numpy" in into[0]
    assert into[1].count("--editable") == 6
    (checkout.root / ".venv" / ".ready").unlink()
    said, _, _ = checkout.set_up(FAIL="no network", ONLY="--python")
    assert "is left out" in said
    assert said.splitlines()[-1] == "Ready: Python 3.11.9 in .venv"
    assert not (checkout.root / ".venv-newer").exists()


def test_a_ready_environment_is_left_alone_until_something_else_is_asked_for(
    checkout: Checkout, tmp_path: Path
) -> None:
    nothing: tuple[str, str, list[str]] = ("", "", [])
    checkout.set_up()
    assert checkout.set_up() == nothing
    (tmp_path / "link").symlink_to(checkout.root)
    assert checkout.set_up(tmp_path / "link") == nothing
    (tmp_path / "scripts").mkdir()
    assert checkout.set_up(CDPATH=str(tmp_path)) == nothing
    said, _, calls = checkout.set_up(option="--tools")
    assert said == "Installing the tools ...\n"
    assert calls == ["-m pip install --no-compile --group dev"]
    assert checkout.set_up(option="--tools") == nothing
    with (checkout.root / "pyproject.toml").open("a") as description:
        description.write("# more\n")
    _, _, calls = checkout.set_up()
    assert [call.split()[1] for call in calls] == ["pip", "pip", "synk_theano_compat"]
    assert checkout.set_up() == nothing


def test_a_moved_or_unfinished_environment_is_made_anew(checkout: Checkout, tmp_path: Path) -> None:
    add(checkout.root / ".venv/bin", "python", PYTHON)
    _, _, not_finished = checkout.set_up()
    _, _, moved = checkout.set_up(checkout.root.rename(tmp_path / "moved"))
    assert not_finished[0] == moved[0] == "-m venv --clear .venv"


def test_without_a_network_one_line_says_so(checkout: Checkout) -> None:
    told = "NameResolutionError(': Failed to resolve: Temporary failure in name resolution')"
    _, said, calls = checkout.set_up(FAIL=told)
    (line,) = said.splitlines()
    assert line.startswith("failed: the package index could not be reached; check the network")
    assert len(calls) == 2  # the environment, and pip's first call
    assert told in (checkout.root / ".venv/bootstrap.log").read_text()
    _, said, calls = checkout.set_up()
    assert (said, len(calls)) == ("", 4)  # an environment without pip is made anew
