"""The built wheels are whole: installed in a fresh environment, away from the source, they work."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from _checkout import OF_THEANO, PACKAGES, ROOT
from _wheels import make_environment, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_wheel_holds_every_module_of_its_source(wheels: dict[str, Path], folder: str) -> None:
    source = ROOT / "packages" / folder / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert any(name.endswith("py.typed") for name in expected)
    names = set(zipfile.ZipFile(wheels[folder]).namelist())
    assert expected - names == set()
    foreign = {name for name in names - expected if ".dist-info/" not in name}
    assert {name for name in foreign if not name.endswith(".pth")} == set()


def test_no_wheel_is_larger_than_its_budget(wheels: dict[str, Path]) -> None:
    budgets = json.loads((ROOT / "scripts/budgets.json").read_text(encoding="utf-8"))["wheels_kib"]
    sizes = {folder: -(-wheel.stat().st_size // 1024) for folder, wheel in wheels.items()}
    assert {name: size for name, size in sizes.items() if size > budgets[name]} == {}


PARALLEL = """
import sys
import numpy as np
import {engine}.tensor as T
import synkhronos as synk
synk.fork(2, use_gpu=False)
x = T.matrix("x")
f = synk.function([x], outputs=[(x ** 2).mean(), (x.sum(axis=1), "gather")])
synk.distribute()
rows = np.arange(21.0).reshape(7, 3)
mean, sums = f(rows)
np.testing.assert_allclose(mean, (rows ** 2).mean(), rtol=1e-12)
np.testing.assert_array_equal(sums, rows.sum(axis=1))
packages = {{name.partition(".")[0] for name in sys.modules}}
print(*sorted(packages & {{"theano", "pytensor", "synk_theano", "synk_pytensor"}}))
"""


@pytest.mark.parametrize(
    ("engine", "fixture"), [("theano", "installed"), ("pytensor", "installed_newer")]
)
def test_a_function_is_computed_by_two_ranks_with_the_engine_of_each_python(
    request: pytest.FixtureRequest,
    clean_environment: dict[str, str],
    tmp_path: Path,
    engine: str,
    fixture: str,
) -> None:
    python = request.getfixturevalue(fixture)
    program = tmp_path / "program.py"
    program.write_text(PARALLEL.format(engine=engine))
    printed = run(python, program, env=clean_environment, cwd=tmp_path)
    assert printed.splitlines()[-1].split() == sorted([engine, f"synk_{engine}"])


def test_nothing_of_theanos_repair_is_where_pytensor_is(installed_newer: Path) -> None:
    (site,) = installed_newer.parent.parent.glob("lib/python*/site-packages")
    names = {path.name for path in site.iterdir()}
    assert {"synk_core", "synk_pytensor", "synkhronos"} <= names
    assert [name for name in names if name.endswith(".pth") and "synk" in name] == []
    assert {"synk_theano", "synk_theano_compat", "theano"} & names == set()


@pytest.mark.nightly
def test_the_extra_for_pymc_is_all_that_its_page_needs(
    wheels: dict[str, Path], newer: Path, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    chosen = [wheels[one] for one in PACKAGES if one not in OF_THEANO]
    python = make_environment(tmp_path / "venv", chosen, newer, extra="pymc")
    here = {**clean_environment, "SYNKHRONOS_N_PARALLEL": "2"}
    page = ROOT / "docs/pymc.md"
    printed = run(python, ROOT / "integration/_run_page.py", page, cwd=tmp_path, env=here)
    assert printed.splitlines()[-1] != "0 blocks ran"


@pytest.mark.parametrize(
    ("folder", "module", "allowed"),
    [
        ("synk-shm", "synk_shm", {"synk-shm", "numpy", "posix-ipc"}),
        ("synk-comm", "synk_comm", {"synk-comm", "numpy", "pyzmq"}),
    ],
)
def test_a_lower_package_works_alone(
    wheels: dict[str, Path],
    clean_environment: dict[str, str],
    tmp_path: Path,
    folder: str,
    module: str,
    allowed: set[str],
) -> None:
    python = make_environment(tmp_path / "venv", [wheels[folder]])
    names = "print(*(d.metadata['Name'] for d in importlib.metadata.distributions()))"
    listed = run(python, "-c", f"import importlib.metadata; {names}", env=clean_environment)
    assert {name.replace("_", "-").lower() for name in listed.split()} == allowed
    program = (
        f"import sys, {module}\n"
        f"missing = [name for name in {module}.__all__ if not hasattr({module}, name)]\n"
        "assert not missing, missing\n"
        "assert 'theano' not in sys.modules\n"
        f"print({module}.__version__)\n"
    )
    printed = run(python, "-c", program, cwd=tmp_path, env=clean_environment)
    assert printed.strip() == wheels[folder].name.split("-")[1]


@pytest.mark.nightly
def test_theano_compat_alone_makes_theano_work(
    wheels: dict[str, Path], clean_environment: dict[str, str], tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "venv", [wheels["theano-compat"]])
    program = (
        "import theano, theano.tensor as T, sys\n"
        "x = T.matrix()\n"
        "print(theano.function([x], (2 * x).prod(axis=0))([[1, 2], [3, 4]]).tolist())\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules if 'synk' in name}))\n"
    )
    printed = run(python, "-c", program, cwd=tmp_path, env=clean_environment)
    assert printed == "[12.0, 32.0]\n['synk_theano_compat']\n"
