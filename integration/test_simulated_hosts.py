"""Hosts that are simulated, by root; the benchmark of several hosts, and its model of more."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _checkout import ROOT, ran

from synk_testing import Program, why_no_mpi

sys.path.append(str(ROOT / "integration/benchmarks"))

from hostbench import model, network, tables
from hostbench.model import LARGE_NBYTES, OURS, ROWS, THEIRS, WHOLE, Costs
from synk_benchmarks.results import Cell, Result, Row, Run, load

FOLDER = ROOT / "integration/benchmarks"
LIMIT_S = 200
BRIEF = ("--quick", "--rounds", "2", "--sizes", "1K", "1M")
RECORDED = sorted(FOLDER.glob("results/hosts-*.json"))


@pytest.fixture
def hosts():
    """Make simulated hosts; see `network.hosts`."""
    problem = why_no_mpi() or network.missing()
    if problem:
        pytest.skip(f"no simulated hosts: {problem}")
    return network.hosts


@pytest.fixture
def mpi():
    """Skip without MPI."""
    if problem := why_no_mpi():
        pytest.skip(problem)


def bench(*arguments):
    how = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "timeout": LIMIT_S}
    return ran(sys.executable, FOLDER / "hosts.py", *arguments, **how)


# ---- the model -----------------------------------------------------------------------------------


def rows_of(costs, ranks, label, sizes=(1 << 10, 1 << 20, 1 << 24)):
    """Return the rows that a link of these costs would have, by what each call sends."""
    hops = {2: 1, 4: 2, 8: 3}[ranks]
    heard = (ranks - 1) * 1280 / costs.rate
    a_round = costs.round_s + ranks * costs.record_s + hops * costs.latency_s + heard

    def made(group, nbytes, seconds, who=OURS):
        cells = {who: Cell((seconds, 2 * seconds))}
        return Row(f"{group}/{nbytes}/{label}/{ranks}", group, label, cells, "s", ranks=ranks,
                   nbytes=nbytes)  # fmt: skip

    yield made("order", 0, 2 * a_round)
    for nbytes in sizes:
        through = nbytes / costs.rate / ranks
        reduced = 2 * (ranks - 1) * through + 2 * hops * costs.latency_s + nbytes * costs.reduce_s
        yield made("all_reduce", nbytes, 3 * a_round + reduced * (nbytes > 1024))
        first = costs.wake_s + 3 * a_round
        shipped = costs.ship_s * nbytes
        whole = 2 * (ranks - 1) * through + (hops + ranks - 1) * costs.latency_s
        if ranks == 2:
            whole = 2 * through + 2 * costs.latency_s + shipped
        yield made(WHOLE, nbytes, first + whole)
        share = through + 2 * costs.latency_s + shipped / ranks
        yield made(ROWS, nbytes, first + (ranks - 1) * share)
    for nbytes in (1, LARGE_NBYTES):
        there = costs.latency_s + nbytes / costs.rate * (nbytes > 1)
        yield made("link", nbytes, 2 * there, THEIRS)


COSTS = Costs(2e-4, 1.2e8, 3e-5, 4e-7, 6e-10, 3e-10, 1e-4)


def test_constants_are_found_again_and_predict_the_other_rows():
    rows = [row for ranks in (2, 4, 8) for row in rows_of(COSTS, ranks, "a link")]
    found = model.fitted([row for row in rows if row.ranks == 2], COSTS.record_s)
    assert vars(found) == pytest.approx(vars(COSTS))
    checks = list(model.checks(rows, {"a link": found}))
    assert len(checks) == 3 * (1 + 3 * 3)
    for check in checks:
        assert check.predicted == pytest.approx(check.measured), check.row.key


def test_a_link_that_was_not_measured_has_no_constants():
    rows = [row for row in rows_of(COSTS, 2, "a link") if row.group != "link"]
    with pytest.raises(ValueError, match="expected 1 and 16 MB"):
        model.fitted(rows, 0.0)
    assert tables.constants_of(rows) == {}


@pytest.mark.parametrize("ranks", [2, 3, 51, 52, 64, 1000, 1024, 4096])
def test_the_model_s_rounds_are_those_of_the_back_end(ranks):
    fabric = pytest.importorskip("synk_comm._backends.mpi.fabric")
    assert model.record_bytes(ranks) == fabric.record_bytes(ranks)
    assert 2 ** (model.hops(ranks) - 1) < ranks <= 2 ** model.hops(ranks)


def test_a_step_of_one_rank_computes_and_nothing_else():
    network_ = model.NETWORKS[0]
    assert network_.efficiency(COSTS, 1) == 1
    parts = network_.parts(COSTS, 1024)
    # Rows of 1023 other hosts leave through one link.
    assert parts[model.SHARES] > 1023 * network_.row_nbytes / COSTS.rate
    assert math.isclose(network_.efficiency(COSTS, 1024), 36e-3 / sum(parts.values()))
    assert network_.efficiency(COSTS, 1024, [model.SHARES]) > network_.efficiency(COSTS, 1024)


def test_a_page_compares_judges_and_predicts(tmp_path):
    rows = [row for ranks in (2, 4) for row in rows_of(COSTS, ranks, "1 Gbit/s, +200 us")]
    cells = {OURS: Cell((3.0, 3.0)), THEIRS: Cell((1.0, 2.0))}
    rows.append(Row("order/0/free", "order", tables.FREE, cells, "s", ranks=2))
    result = Result([Run({}, {"rounds": "2"})], rows)
    page = tables.page(result)
    assert "0 of 1 targets reached, 1 not" in page.summary
    shown = page.plain()
    assert "2.25; 3.00 (<= 2 NO~)" in shown
    assert "Where the time of a step goes" in shown
    tables.draw(result, tmp_path / "scaling.svg")
    assert "ResNet-50" in (tmp_path / "scaling.svg").read_text()


# ---- the program ---------------------------------------------------------------------------------


def test_ranks_that_believe_in_hosts_are_measured_beside_mpi4py(mpi, tmp_path):
    files = tmp_path / "r.json", tmp_path / "r.md"
    done = bench("--plain", *BRIEF, "--json", files[0], "--markdown", files[1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(row.group, row.nbytes): row for row in load(files[0]).rows}
    assert {group for group, _ in found} == set(tables.GROUPS)
    for nbytes in (1 << 10, 1 << 20):
        assert set(found["all_reduce", nbytes].cells) == {OURS, "synk-comm", THEIRS}
    cells = [cell for row in found.values() if row.nbytes for cell in row.cells.values()]
    assert all(len(cell.samples) == 2 and min(cell.samples) > 0 for cell in cells)
    again = bench("--read", files[0], "--markdown", tmp_path / "again.md")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.md").read_text() == files[1].read_text()


@pytest.mark.parametrize(
    "arguments, status, said",
    [
        (["--hosts", "1"], 2, "from 2 on"),
        (["--links", "fast"], 2, "expected free, or as in 10:200"),
        (["--sizes", "1X"], 2, "expected as in 4096, 64K, 1M"),
        (["--plain", "--links", "1:20"], 1, "only between simulated hosts: --plain"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(mpi, arguments, status, said):
    done = bench(*arguments)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_was_recorded_is_still_read_and_shown_as_then(path, tmp_path):
    done = bench("--read", path, "--markdown", tmp_path / "page.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.md").read_text() == path.with_suffix(".md").read_text()


# ---- hosts ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_link_is_as_slow_as_was_asked_for(hosts, tmp_path):
    file = tmp_path / "r.json"
    done = bench("--only", "link", "--rounds", "3", "--links", "1:300", "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in load(file).rows if row.group == "link"]
    latency_s, rate = model.link_of(rows)
    assert latency_s >= 300e-6
    assert rate <= 1e9 / 8


COMPUTES = """
import json, os
import numpy as np
import theano
import theano.tensor as T
from theano.compile.ops import as_op
import synkhronos as synk

@as_op([T.dmatrix], [T.dmatrix])
def places(rows):
    "Return, for each row, which /dev/shm its rank has, and the number in its hostname."
    place = os.stat("/dev/shm").st_dev, int(os.uname().nodename[1:])
    return np.tile(np.array(place, float), (len(rows), 1))

synk.fork(verbose=False, use_gpu=False)
x = T.dmatrix("x")
w = theano.shared(np.zeros(3), "w")
step = [(w, w + x.sum(axis=0))]
function = synk.function([x], [(places(x), "gather"), (x.sum(axis=0), "sum")], updates=step)
data = synk.data(np.arange(24.0).reshape(8, 3))
first = function(data)
data[7] = 100
second = function(data)
synk.all_reduce(w, op="sum")
facts = [first[0].tolist(), first[1].tolist(), second[1].tolist(), w.get_value().tolist()]
print(json.dumps(facts), flush=True)
while True:
    function(data)
"""


def started(made, code):
    """Start a program on all hosts."""
    mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
    quiet = {"UCX_LOG_LEVEL": "error", "THEANO_FLAGS": "linker=py,optimizer=fast_compile"}
    return Program(code, prefix=made.command(str(mpiexec)), environment=quiet)


@pytest.mark.nightly
def test_two_hosts_compute_and_the_death_of_one_ends_the_job(hosts):
    x = np.arange(24.0).reshape(8, 3)
    changed = x.copy()
    changed[7] = 100
    with hosts(2) as made:
        with started(made, COMPUTES) as program:
            places, *sums = program.answer()
            assert [number for _, number in places] == [1] * 4 + [2] * 4
            memories = [memory for memory, _ in places]
            assert len(set(memories[:4])) == len(set(memories[4:])) == 1
            assert memories[0] != memories[7]
            assert sums == [whole.sum(axis=0).tolist() for whole in (x, changed, x + changed)]
            assert left_on(made)  # ranks, which are found
            made.kill("h2")
            assert program.wait() != 0
            program.wait_alone()
        assert left_on(made) == []
    # MPI's launcher has killed the master, which could not remove its shared memory.
    assert ran(sys.executable, "-c", NEXT_PROGRAM, timeout=LIMIT_S).returncode == 0


NEXT_PROGRAM = "import synk_shm; synk_shm.zeros(1)"
"""Removes what killed programs have left on this host."""


def left_on(made):
    """Return the commands of processes in the hosts' namespaces, but those that keep them."""
    found = []
    for name in made.names:
        pids = subprocess.run(
            ["ip", "netns", "pids", made.namespace(name)], capture_output=True, text=True
        ).stdout.split()
        for pid in pids:
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
    return [
        command for command in found if command != "sleep infinity" and "unshare" not in command
    ]
