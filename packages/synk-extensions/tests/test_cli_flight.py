"""``synkhronos flight``: what every rank did before a failure, from records of real failures."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys

import pytest
from _cli import SETTINGS, command, invoke
from _programs import zygote

from synk_core import flight
from synkhronos_cli._flight import file as flight_file

# Three ranks; one of the workers raises, then another is killed: two records.
PROGRAM = """
import os, signal
import numpy as np, theano, theano.tensor as T
import synkhronos as synk

class Touchy(theano.Op):
    __props__ = ()
    def make_node(self, x):
        return theano.Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        if inputs[0].max() == 2:
            raise ArithmeticError("cannot [stand] two")
        if inputs[0].max() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        outputs[0][0] = inputs[0].copy()

synk.fork(3, use_gpu=False)
x = T.dvector()
s = theano.shared(np.zeros(100), name="s")
f = synk.function([x], (Touchy()(x).sum(), "sum"), updates=[(s, s + 1)], name="train")
synk.distribute()
for rows in range(3, 20):
    f(np.ones(rows))
synk.step(f.delayed(np.ones(7)), synk.delayed.all_reduce(s))
for value, place in ((2.0, -1), (3.0, 3)):
    row = np.ones(6)
    row[place] = value
    try:
        f(row)
    except synk.SynkError as error:
        print(type(error).__name__, error.rank)
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A folder with the records of `PROGRAM`."""
    folder = tmp_path_factory.mktemp("flight")
    program = folder / "train.py"
    program.write_text(PROGRAM)
    done = zygote().run(program, environment={**SETTINGS, "SYNKHRONOS_FLIGHT_DIR": str(folder)})
    assert "WorkerFailed 2\nWorkerDied 1\n" in done.out, done.err
    return folder


@pytest.fixture
def here(records, monkeypatch):
    """The records' folder is this process's, too."""
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(records))
    monkeypatch.setenv("COLUMNS", "200")
    return records


def run(*arguments):
    """The command, in this process: (exit status, what it printed)."""
    done = invoke("flight", *arguments)
    return done.exit_code, done.output


def row_of(output, order):
    """The line of an order in the table of acts."""
    (line,) = re.findall(rf"^ +{order}  .*$", output, re.MULTILINE)
    return line


def test_the_newest_record_tells_who_was_killed_and_where(records):
    done = command("flight", SYNKHRONOS_FLIGHT_DIR=str(records), COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    out = done.stdout
    assert "WorkerDied of rank 1\n" in out
    assert "was killed by SIGKILL while it was computing function 'train'" in out
    assert re.search(r"^1 +\d+ +computing function 'train' *$", out, re.MULTILINE)
    assert re.search(r"^0 \(master\) +\d+ +in the reduction of", out, re.MULTILINE)
    last = row_of(out, 21)
    assert last.count("under way") >= 1
    assert last.rstrip().endswith("<- rank 1: WorkerDied")
    assert len(re.findall(r" us| ms| s ", last)) >= 3, "when it began, on each rank"
    assert "<-" not in row_of(out, 18)
    assert row_of(out, 18).count("done") == 3


def test_a_record_of_a_worker_that_raised_has_its_traceback(here):
    name = sorted(path.name for path in here.glob("*.json"))[0]
    status, out = run(name)
    assert status == 0
    assert "WorkerFailed of rank 2" in out
    assert "ArithmeticError: cannot [stand] two" in out, "brackets are not markup"
    row = row_of(out, 20)
    assert "failed" in row
    assert row.rstrip().endswith("<- rank 2 failed")
    assert "undone" in row
    assert run(here / name) == (status, out), "by its path"


def test_rows_and_bytes_are_those_of_the_calls(here):
    """The call with n rows is order n - 1; float64 rows of 8 bytes, over three ranks."""
    _, out = run("--last", 100)
    for order in range(4, 15):
        rows = order + 1
        row = row_of(out, order)
        assert f" {8 * rows} bytes " in row
        shares = [rows // 3 + (rank < rows % 3) for rank in range(3)]
        assert [int(n) for n in re.findall(r"(\d+)  done", row)] == shares


def test_acts_of_a_step_stand_below_one_order(here):
    lines = run()[1].splitlines()
    (step,) = [i for i, line in enumerate(lines) if re.match(r" +19  function 'train'", line)]
    assert re.match(r" +all_reduce\(\) +800 bytes", lines[step + 1])


def test_the_number_of_orders_can_be_chosen(here):
    assert len(re.findall(r"function 'train' +\d+ bytes", run("--last", 2)[1])) == 2
    assert run("--last", 0)[0] == 2


def test_ranks_stand_below_one_another_where_the_terminal_is_narrow(here, monkeypatch):
    wide = run()[1]
    monkeypatch.setenv("COLUMNS", "90")
    narrow = run()[1]
    assert wide.count("outcome") == 3
    assert sum("outcome" in line for line in wide.splitlines()) == 1
    assert sum("outcome" in line for line in narrow.splitlines()) == 3
    assert narrow.count("<- rank 1: WorkerDied") == 3


def test_json_is_all_that_is_known(here):
    newest, older = flight.files()
    assert json.loads(run("--json")[1]) == flight.load(newest)
    assert json.loads(run("--json", older.name)[1]) == flight.load(older)
    listed = json.loads(run("--list", "--json")[1])
    assert [one["file"] for one in listed] == [str(newest), str(older)]
    assert [(one["error"], one["rank"]) for one in listed] == [
        ("WorkerDied", 1),
        ("WorkerFailed", 2),
    ]


def changed(here, tmp_path, change):
    """A copy of the newest record, with a change."""
    record = copy.deepcopy(flight.load(flight.files()[0]))
    change(record)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(record))
    return path


def test_who_has_not_finished_what_another_rank_has_is_behind(here, tmp_path):
    def stall(record):
        record["error"].update(rank=None, type="KeyboardInterrupt")
        for rank in record["ranks"]:
            rank["records"][-1]["outcome"] = "done" if rank["rank"] == 0 else "under way"
        del record["ranks"][2]["records"][-1]
        record["stacks"] = {"1": 'File "[model].py", line 3 in step'}

    out = run(changed(here, tmp_path, stall))[1]
    last = row_of(out, 21)
    assert last.rstrip().endswith("<- rank 1 is behind, <- rank 2 is behind")
    assert "not begun" in last
    assert 'Stack of rank 1\nFile "[model].py", line 3 in step\n' in out


def test_what_a_rank_has_not_kept_is_not_taken_for_not_begun(here, tmp_path):
    def forget(record):
        del record["ranks"][1]["records"][:-3]

    out = run("--last", 100, changed(here, tmp_path, forget))[1]
    assert "not kept" in row_of(out, 3)
    assert "<-" not in row_of(out, 3)


def test_before_the_first_order_there_are_no_acts(here, tmp_path):
    def at_start(record):
        for rank in record["ranks"]:
            rank["records"] = []

    status, out = run(changed(here, tmp_path, at_start))
    assert status == 0
    assert "No rank has received an order." in out


def test_the_list_has_the_newest_first_and_tells_what_cannot_be_read(here, tmp_path, monkeypatch):
    for path in here.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "20000101-000000-1-0001.json").write_text("{")
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(tmp_path))
    status, out = run("--list")
    assert status == 0
    assert re.search(r"train\.py.*WorkerDied of rank 1[^$]*WorkerFailed of rank 2", out)
    assert re.search(r"20000101-\S+ +not readable", out)


def test_no_record_is_good_news(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(tmp_path / "none"))
    status, out = run()
    assert status == 0
    assert "nothing failed" in out
    assert run("--json") == (0, "null\n")
    assert run("--list")[0] == 0


@pytest.mark.parametrize("content", ["", "[]", '{"version": 99}', "not JSON"])
def test_other_files_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "some.json"
    path.write_text(content)
    for options in ([], ["--json"]):
        done = invoke("flight", *options, path)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("synkhronos: ")
        assert "flight record" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    gone = invoke("flight", tmp_path / "gone.json")
    assert gone.exit_code == 2
    assert len(gone.stderr.splitlines()) == 1
    assert run("--list", path)[0] == 2


NAME = "20200101-000000-1-{:04d}.json"


def test_hostile_records_are_refused_and_the_others_are_listed(here, tmp_path, monkeypatch):
    """Wrong types everywhere, nesting, pipes, links to devices, no end."""
    path = next(iter(sorted(here.glob("*.json"))))
    good = json.loads(path.read_text())
    texts = [
        '{"version": 1}',
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"version": 1e999}',
        "\x00",
        "\ud800",
    ]
    for key in good:
        for value in (None, 5, "x", [], [[]], {}, {"x": None}, [{"rank": "0"}]):
            if value != good[key] and key not in ("versions", "stacks", "program", "ranks"):
                texts.append(json.dumps({**good, key: value}))
    texts += [json.dumps({**good, "ranks": [{**good["ranks"][0], "records": [[]]}]})]
    texts += [json.dumps({**good, "stacks": {"0": 5}}), json.dumps({**good, "program": [5]})]
    texts += [json.dumps({**good, "when": when}) for when in ("9999-99-99", "0001-01-01", "")]
    assert len(texts) > 50
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(tmp_path))
    refused = 0
    for number, text in enumerate(texts):
        place = tmp_path / NAME.format(number)
        place.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            flight.load(place)
        except (ValueError, OSError):
            pass
        done = invoke("flight", place.name)
        assert done.exit_code in (0, 2), text[:80]  # some of it is never printed
        refused += done.exit_code == 2
        assert done.exception is None or isinstance(done.exception, SystemExit), text[:80]
        assert len(done.stderr.splitlines()) <= 1
    assert refused > 0.9 * len(texts)
    os.mkfifo(tmp_path / NAME.format(9001))
    os.symlink("/dev/zero", tmp_path / NAME.format(9002))
    os.symlink(path, tmp_path / NAME.format(9003))
    (tmp_path / path.name).write_bytes(path.read_bytes())
    status, out = run("--list")
    assert status == 0
    assert path.name in out
    assert "-9001.json" not in out + str(flight.files())
    for number in (9001, 9002):
        place = tmp_path / NAME.format(number)
        assert run(place)[0] == 2
        with pytest.raises(ValueError, match="no file"):
            flight.load(place)
    monkeypatch.setattr(flight_file, "MOST_BYTES", 100)
    assert run(path.name)[0] == 2


def test_nothing_in_a_record_reaches_the_terminal_as_it_is(here, tmp_path, monkeypatch):
    path = next(iter(sorted(here.glob("*.json"))))
    strike = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x7f\r"

    def everywhere(value):
        if isinstance(value, str):
            return value + strike
        if isinstance(value, list):
            return [everywhere(item) for item in value]
        if isinstance(value, dict):
            return {key: everywhere(item) for key, item in value.items()}
        return value

    record = json.loads(path.read_text())
    struck = everywhere({key: item for key, item in record.items() if key != "when"})
    place = tmp_path / NAME.format(1)
    place.write_text(json.dumps({**record, **struck}))
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(tmp_path))
    for options in ([], ["--list"], ["--json"], ["--list", "--json"]):
        status, out = run(*options)
        assert status == 0
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out), options
        assert options or r"\x1b]52;c;" in out


def test_folder_and_version_are_those_of_the_library(tmp_path, monkeypatch):
    assert flight.VERSION == flight_file.VERSION
    for name, value in (
        ("SYNKHRONOS_FLIGHT_DIR", "records"),
        ("XDG_CACHE_HOME", str(tmp_path)),
        ("HOME", str(tmp_path / "home")),
    ):
        for other in ("SYNKHRONOS_FLIGHT_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, value)
        assert flight_file.folder() == flight.folder()


def test_it_imports_no_theano(here):
    code = (
        "import sys\nfrom synkhronos_cli._flight.show import show_flight\n"
        "show_flight(None, 3, json=False)\n"
        "print(sorted({'theano', 'numpy', 'synk_core'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")
