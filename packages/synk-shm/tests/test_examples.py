"""The programs of the examples, of the README and of the guide run as printed there."""

from __future__ import annotations

import ast
import re
import time
from pathlib import Path

import pytest

import synk_shm as shm

HOME = Path(__file__).parents[1]
EXAMPLES = {path.name: path.read_text() for path in sorted((HOME / "examples").glob("*.py"))}
README = (HOME / "README.md").read_text()
GUIDE = (HOME / "docs" / "from_shared_memory.md").read_text()
FENCE = r"```python\n(.*?)```"
CHOOSE = """
import multiprocessing, sys
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
"""


def sections(text: str) -> dict[str, str]:
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part for part in parts}


PRINTED = {
    title: re.findall(r"```text\n(.*?)```", part, re.S)
    for title, part in sections((HOME / "examples" / "README.md").read_text()).items()
}
AFTER = {
    f"{title}, {number}": block
    for title, part in sections(GUIDE).items()
    for number, block in enumerate(re.findall(rf"\*\*After\*\*[^\n]*\n\n{FENCE}", part, re.S), 1)
}
BY_NAME = ["Attach by name, 1", "Attach by name, 2"]
PARALLEL = [title for title in AFTER if "multiprocessing" in AFTER[title]]
ALONE = [title for title in AFTER if title not in BY_NAME + PARALLEL]


def promised(code: str) -> list[str]:
    return re.findall(r"print\(.*#-> (.*)", code)


def mask(printed: str) -> str:
    return re.sub(r"\d+%", "few %", printed).strip()


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def script(bare_script):
    return bare_script


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(script, name, method):
    process = script.start(EXAMPLES[name], "--start-method", method)
    printed = script.finish(process)
    process.wait_alone()
    assert mask(printed) == mask(PRINTED[name][0])


@pytest.mark.nightly
def test_model_is_in_memory_once(script):
    """A copy in any of the workers would show in one of the figures."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this system does not report how memory is shared")
    printed = script.run(EXAMPLES["readonly_model.py"], "--processes", 4)
    assert "together: 1.0 times the model" in printed
    assert int(re.findall(r"(\d+)% of the model", printed)[0]) < 25


@pytest.mark.parametrize("die_at", [0, 1, 30, 199])
def test_ring_whose_producer_is_killed(script, method, die_at):
    printed = script.run(EXAMPLES["ring.py"], "--die-at", die_at, "--start-method", method)
    expected = PRINTED["ring.py"][1].strip()
    assert printed == expected.replace("30 whole", f"{die_at} whole")


def test_ring_whose_consumer_is_killed(script, method):
    process = script.start(EXAMPLES["ring.py"], "--frames", 10**9, "--start-method", method)
    wait_until(lambda: any("/synk." in path for path in mapped(process.pid)))
    paths = mapped(process.pid)
    name = next(path for path in paths if "/synk." in path).rpartition("/")[2]
    wait_until(lambda: shm.attach("/" + name)["header"]["sent"] > 10)
    process.kill()
    process.wait_alone()
    assert [path for path in paths if Path(path).exists()] == []
    assert name not in [info.name for info in shm.list()]


def mapped(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "/dev/shm/" in line and "(deleted)" not in line}


def test_examples_of_the_readme(script, method):
    first, *others = re.findall(FENCE, README, re.S)
    assert script.run(CHOOSE + first, method).splitlines() == promised(first) != []
    for code in others:
        assert script.run(CHOOSE + code, method).splitlines() == promised(code)


def test_two_programs_of_the_readme(script, given):
    session = re.findall(r"```pycon\n(.*?)```", README, re.S)[0].replace("table", given("table"))
    one, another = re.findall(r">>> (.*)", session)
    start = "import synk_shm as shm\n"
    owner = script.start(f"{start}{one}\nprint('made', flush=True)\ninput()\nprint(a.tolist())\n")
    assert owner.line() == "made"
    script.run(start + another)
    assert script.finish(owner, "") == "[[0.0, 0.0, 0.0], [7.0, 7.0, 7.0]]"


def test_the_guide_has_all_its_programs_here():
    assert len(AFTER) == GUIDE.count("**After**")
    assert len(AFTER) == len(BY_NAME) + len(ALONE) + len(PARALLEL)
    without = [title for title, part in sections(GUIDE).items() if "**After**" not in part]
    assert without == ["What has no equivalent"]
    for block in re.findall(FENCE, GUIDE, re.S):
        ast.parse(block)  # also those under *Before*


@pytest.mark.parametrize("title", ALONE)
def test_program_of_the_guide(script, given, title):
    code = AFTER[title].replace("prices", given("prices"))
    assert script.run(code).splitlines() == promised(code) != []


@pytest.mark.parametrize("title", PARALLEL)
def test_parallel_program_of_the_guide(script, title, method):
    code = AFTER[title]
    assert script.run(CHOOSE + code, method).splitlines() == promised(code) != []


def test_two_programs_of_the_guide(script, given):
    name = given("prices")
    one, another = (AFTER[title].replace("prices", name) for title in BY_NAME)
    owner = script.start(one + "\nprint('made', flush=True)\ninput()\n")
    assert owner.line() == "made"
    assert script.run(another).splitlines() == promised(another) != []
    script.finish(owner, "")
