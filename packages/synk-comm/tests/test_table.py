"""The table of collectives: the front, the documentation and the contract have all of its rows."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from contract.nonblocking import calls_of
from contract.steps import MOVES, REDUCTIONS

from synk_comm import Communicator, local_group
from synk_comm._core.table import TABLE

OF_ARRAYS = [row for row in TABLE.values() if not row.is_of_objects]
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def parameters(name):
    return inspect.signature(getattr(Communicator, name)).parameters


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_the_front_takes_what_the_row_says(row):
    names = set(parameters(row.name)) - {"self"}
    given = {name for name in names if name in ("x", "xs", "obj", "objs")}
    assert len(given) == bool(row.sends)
    expected = {"timeout_s"}
    expected |= {"root"} if row.root else set()
    expected |= {"op", "weight"} if row.makes == "fold" else set()
    has_room = row.makes and row.makes != "fill" and not row.is_of_objects
    expected |= {"out"} if has_room else set()
    assert names - given == expected
    assert getattr(Communicator, row.name).__doc__


@pytest.mark.parametrize("row", OF_ARRAYS, ids=lambda row: row.name)
def test_each_has_a_form_that_does_not_wait(row):
    blocking, begun = parameters(row.name), parameters(f"i{row.name}")
    assert list(begun.values()) == [p for p in blocking.values() if p.name != "timeout_s"]
    method = getattr(Communicator, f"i{row.name}")
    assert method.__name__ == f"i{row.name}"
    assert row.name in method.__doc__
    (comm,) = local_group()
    with comm, pytest.raises(TypeError, match="give it to wait"):
        getattr(comm, f"i{row.name}")(timeout_s=1)


def test_the_readme_and_the_contract_have_every_row():
    listed = set(re.findall(r"`(\w+)[`(]", README))
    assert {row.name for row in OF_ARRAYS} <= listed
    assert {f"i{row.name}" for row in OF_ARRAYS} <= listed
    assert {row.name for row in OF_ARRAYS if row.sends} <= {*REDUCTIONS, *MOVES}
    (comm,) = local_group()
    with comm:
        assert {method for method, *_ in calls_of(comm, 3, "f4")} == {r.name for r in OF_ARRAYS}
