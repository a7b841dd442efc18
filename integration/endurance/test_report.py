"""The documentation's figures of reliability are those that were recorded."""

from __future__ import annotations

import copy
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import _results
import host_kills
import kill_trials
import report
import soak

RECORDED = report.load(_results.FOLDER)
LARGEST = 150_000


def test_the_page_is_what_the_records_give() -> None:
    assert (report.DOCS / report.PAGE).read_text(encoding="utf-8") == report.page(RECORDED)


def test_the_page_and_its_picture_are_part_of_the_documentation() -> None:
    text = (report.DOCS / "reliability.md").read_text(encoding="utf-8")
    assert f"```{{include}} {report.PAGE}\n" in text
    picture = report.DOCS / report.PICTURE
    assert ET.parse(picture).getroot().tag.endswith("svg")
    assert picture.stat().st_size < LARGEST


def test_the_summaries_are_those_of_the_samples() -> None:
    trials = RECORDED["kill_trials"]
    assert kill_trials.summary(trials["trials"]) == trials["summary"]
    record = RECORDED["host_kills"]
    for name, figures in record["launchers"].items():
        of = [trial for trial in record["trials"] if trial["launcher"] == name]
        assert host_kills.summary(of).items() <= figures.items()
    samples = RECORDED["soak"]["samples"]
    assert soak.growths(samples) == RECORDED["soak"]["growths"]
    alone = soak.growths(soak.in_one_runtime(samples))
    assert alone == RECORDED["soak"]["growths_in_one_runtime"]


def test_what_is_recorded_is_good() -> None:
    """A page with leaks or hangs on it would be honest, but nothing to release."""
    told = RECORDED["kill_trials"]["summary"]
    assert told["wrong"] == 0
    assert set(told["leaks"].values()) == {0}
    assert soak.growing(RECORDED["soak"]) == []
    for launcher in RECORDED["host_kills"]["launchers"].values():
        assert launcher["kills"] >= 25
        assert (launcher["wrong"], launcher["left"]) == (0, [])


@pytest.mark.parametrize("kind", sorted(RECORDED))
def test_records_tell_where_they_were_made(kind: str) -> None:
    record = RECORDED[kind]
    assert set(record["machine"]) == {"processor", "cores", "memory_gib", "system"}
    assert {"Python", "numpy", "synk-theano"} <= set(record["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["when"])


CASES = [
    {"state": "computing", "fault": "SIGKILL", "exception": "WorkerDied", "seconds": 0.0123},
    {"state": "computing", "fault": "SIGKILL", "exception": "WorkerDied", "seconds": 0.0456},
    {"state": "closing", "fault": "SIGKILL", "exception": None, "seconds": None},
    {"state": "closing", "fault": "raises", "exception": "WorkerFailed", "seconds": 1.5},
]


def test_faults_are_a_table(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (tmp_path / "faults.json").write_text(json.dumps(CASES), encoding="utf-8")
    report.take(tmp_path, results)
    text = report.page(report.load(results))
    assert "4 combinations" in text
    assert {case["fault"] for case in RECORDED["faults"]["cases"]} == set(report._FAULTS)
    assert "The 2 deaths of workers took 46 ms at most." in text
    assert "| an exception in a worker | 1 | 1.50 s | 1.50 s | closing |\n" in text
    assert "| a worker gets SIGKILL | 2 | 29 ms | 46 ms | computing |\n" in text
    assert "kill -9" not in text, "of what was not recorded nothing is said"


def test_other_figures_make_another_page_and_picture(tmp_path: Path) -> None:
    changed: dict[str, Any] = copy.deepcopy(RECORDED)
    changed["kill_trials"]["summary"]["worker"]["all"]["worst_s"] = 77.7
    changed["soak"]["growths"]["segments"]["growth"] = 33.3
    text = report.page(changed)
    assert "| 77.70 s |" in text
    assert "| 33.3 |" in text
    report.draw(RECORDED["soak"], tmp_path / "one.svg")
    report.draw(RECORDED["soak"], tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    for one in changed["soak"]["samples"]:
        one["segments"] *= 2
    report.draw(changed["soak"], tmp_path / "three.svg")
    assert (tmp_path / "one.svg").read_bytes() != (tmp_path / "three.svg").read_bytes()
