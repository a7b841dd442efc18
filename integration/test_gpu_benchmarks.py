"""The GPU benchmarks: their arithmetic, their processes, and a tiny run on CPU processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).resolve().parent / "benchmarks" / "gpu"
LIMIT_S = 200


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpubench"]:
        del sys.modules[name]


def run(*arguments):
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def steps(contender, gpus, *milliseconds, part="resnet"):
    from gpubench.results import Row

    times = tuple(ms / 1e3 for ms in milliseconds)
    return Row(part, "step", contender, gpus, times, images=64 * gpus)


def line_of(table, *beginning):
    (line,) = (line for line in table[1] if line[: len(beginning)] == list(beginning))
    return dict(zip(table[0], line))


def test_efficiency_is_images_per_second_and_gpu_beside_the_base():
    from gpubench.tables import efficiency

    base = steps("a", 1, 90, 100, 500)
    assert base.median == 0.1
    assert base.images_per_s == pytest.approx(640)
    assert efficiency(base, base) == 1
    assert efficiency(steps("b", 2, 100), base) == pytest.approx(1)
    assert efficiency(steps("b", 4, 125), base) == pytest.approx(0.8)
    assert efficiency(steps("b", 1, 50), base) == pytest.approx(2)
    with pytest.raises(ValueError, match="expected steps"):
        efficiency(base.__class__("resnet", "x", "a", 1, (1.0,)), base)


def test_the_table_of_steps_compares_with_both_plain_ones_and_with_ones_own():
    from gpubench import tables

    rows = [
        steps(tables.PLAIN, 1, 100),
        steps(tables.PLAIN_TAKE, 1, 80),
        steps(tables.OURS, 1, 90),
        steps(tables.OURS, 2, 102, 101, 103),
        steps(tables.OURS, 4, 110),
        steps("PyTorch DDP, defaults", 2, 40),
    ]
    table = tables.steps_table(rows, "resnet")
    two = line_of(table, tables.OURS, "2")
    assert two["ms/step"] == "102.0"
    assert two["images/s"] == "1255"
    assert two[f"beside {tables.PLAIN}"] == "0.980"
    assert two[f"beside {tables.PLAIN_TAKE}"] == "0.784"
    assert two["beside its own 1 GPU"] == "0.882"
    assert two["target"] == ">= 0.97 yes"
    assert line_of(table, tables.OURS, "4")["target"] == ">= 0.95 NO"
    assert line_of(table, tables.PLAIN)["target"] == ""
    assert line_of(table, "PyTorch DDP, defaults")["beside its own 1 GPU"] == ""
    assert line_of(tables.steps_table(rows, "vgg"), tables.OURS, "2")["target"] == ""
    beyond = {row.gpus: row.median for row in tables.beyond_plain(rows)}
    assert beyond == pytest.approx({1: -0.01, 2: 0.002, 4: 0.01})


def test_the_table_of_calls_has_the_ratio_to_the_bare_loop_of_the_same_size():
    from gpubench import tables
    from gpubench.results import Row

    def call(what, contender, seconds, nbytes):
        return Row("allreduce", what, contender, 2, (seconds,), nbytes=nbytes)

    rows = [
        call("1 KB", tables.OURS, 30e-6, 1024),
        call("1 KB", tables.BARE, 10e-6, 1024),
        call("102 MB", tables.OURS, 420e-6, 102_400_000),
        call("102 MB", "in a step", 390e-6, 102_400_000),
        call("102 MB", tables.BARE, 380e-6, 102_400_000),
        call("256 MB", tables.OURS, 1e-3, 256_000_000),
    ]
    table = tables.calls_table(rows)
    small = line_of(table, "1 KB", "2", tables.OURS)
    assert (small["time"], small["ours / bare"], small["target"]) == ("30 us", "3.00", "")
    assert line_of(table, "102 MB", "2", tables.OURS)["target"] == "<= 1.05 NO"
    assert line_of(table, "102 MB", "2", "in a step")["target"] == "<= 1.05 yes"
    alone = line_of(table, "256 MB")
    assert (alone["bandwidth"], alone["ours / bare"]) == ("256 GB/s", "")


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (3.8e-7, "s", "0.38 us"),
        (5.8e-4, "s", "580 us"),
        (0.1314, "s", "131 ms"),
        (47, "s", "47.00 s"),
        (102_400_000, "B", "102 MB"),
        (12, "B", "12 B"),
        (2581, "1", "2581"),
    ],
)
def test_amounts_have_the_unit_that_suits_them(value, unit, text):
    from gpubench.tables import amount

    assert amount(value, unit) == text


def test_the_plan_puts_together_what_one_process_can_measure():
    from gpubench import plan

    groups = plan.groups(plan.PARTS, [4, 1, 2])
    names = {group: [job.name for job in jobs] for group, jobs in groups.items()}
    assert names == {
        "allreduce": ["collectives-2", "collectives-4"],
        "fork": ["starting-1", "starting-2", "starting-4"],
        "resnet": ["plain-resnet-1", "ours-resnet-1", "ours-resnet-2", "ours-resnet-4"],
        "vgg": ["plain-vgg-1", "ours-vgg-1", "ours-vgg-2", "ours-vgg-4"],
        "ddp": ["ddp-1", "ddp-2", "ddp-4"],
    }
    measures = {job.name: job.measures for job in groups["resnet"]}
    assert measures["ours-resnet-1"] == ("steps",)
    assert measures["ours-resnet-2"] == ("steps", "distribution", "timeline")
    assert measures["ours-resnet-4"] == ("steps", "distribution")
    only = plan.groups(["timeline"], [1, 2])
    assert [job.name for jobs in only.values() for job in jobs] == ["ours-resnet-2"]
    with pytest.raises(ValueError, match="no part resnat"):
        plan.groups(["resnat"], [1])
    with pytest.raises(ValueError, match="from 1 on"):
        plan.groups(["resnet"], [0, 1])


def test_results_come_back_from_a_file_and_half_a_line_is_left_out(tmp_path):
    from gpubench.results import Result, load, read_lines

    row = steps("a", 2, 1, 2, 3)
    result = Result({"GPUs": "none"}, {}, [row], {"b": "c"}, {"ddp-1": "no torch"})
    result.save(tmp_path / "r.json")
    assert load(tmp_path / "r.json") == result
    content = json.loads((tmp_path / "r.json").read_text())["rows"][0]
    assert content["median"] == 0.002
    lines = [json.dumps(content), json.dumps({"about": {"x": "y"}}), '{"part": "res']
    (tmp_path / "rows").write_text("\n".join(lines))
    assert read_lines(tmp_path / "rows") == ([row], {"x": "y"})
    assert read_lines(tmp_path / "nothing") == ([], {})


def test_a_cache_travels_in_pieces_without_its_sources(tmp_path):
    from gpubench import cache

    source, kept, back = tmp_path / "source", tmp_path / "kept", tmp_path / "back"
    (source / "module" / "lock_dir").mkdir(parents=True)
    (source / "module" / "mod.so").write_bytes(os.urandom(50_000))
    (source / "module" / "mod.cpp").write_text("int x;")
    (source / "module" / "lock_dir" / "lock").write_text("1")
    pieces = cache.pack(source, kept, piece=20_000)
    assert [piece.name[-3:] for piece in pieces] == [".00", ".01", ".02"]
    assert max(piece.stat().st_size for piece in pieces) <= 20_000
    assert sorted(kept.iterdir()) == pieces
    cache.unpack(kept / cache.NAME, back)
    found = [path.relative_to(back).as_posix() for path in sorted(back.rglob("*"))]
    assert found == ["module", "module/mod.so"]
    assert (back / "module/mod.so").read_bytes() == (source / "module/mod.so").read_bytes()
    with pytest.raises(ValueError, match="expected 4 at most"):
        cache.pack(source, kept, piece=10_000)
    with pytest.raises(FileNotFoundError, match=r"neither this file nor other\.xz\.00"):
        cache.unpack(kept / "other.xz", back)


def test_a_process_that_takes_too_long_is_ended_with_all_it_started(tmp_path):
    from gpubench.process import Failed, Process

    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '100']);"
        "print(child.pid, file=sys.stderr, flush=True); print('ready', flush=True);"
        "sys.stdin.readline(); time.sleep(100)"
    )
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", code], dict(os.environ), tmp_path, log, 3)
    process.wait_ready()
    with pytest.raises(Failed, match="not done after 3 s"):
        process.measure()
    process.end()
    child = int(log.read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_fails_is_quoted(tmp_path):
    from gpubench.process import Failed, Process

    code = "import sys; sys.exit('no device of that name')"
    process = Process(
        [sys.executable, "-c", code], dict(os.environ), tmp_path, tmp_path / "log", 30
    )
    with pytest.raises(Failed, match="exit status 1: no device of that name"):
        process.wait_ready()
    process.end()


def test_ranks_get_devices_by_name():
    from gpubench.job import Settings

    def devices(device):
        return Settings(device, 2, 1, 1, 32, True, "", (), False).devices()

    assert devices("cuda") == {"devices": ["cuda0", "cuda1"]}
    assert devices("opencl0:0") == {"devices": ["opencl0:0"] * 2}
    assert devices("cpu") == {"n_parallel": 2, "use_gpu": False}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--only", "resnat"], "there is no part resnat"),
        (["--gpus", "0"], "from 1 on"),
        (["--gpus", "two"], "two"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(arguments, said, tmp_path):
    done = run("--out", tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_tiny_run_on_cpu_processes_goes_from_end_to_end(tmp_path):
    only = "allreduce,fork,resnet,timeline,distribution,ddp"
    tiny = ("--device", "cpu", "--tiny", "--together", "--gpus", "2")
    done = run("--out", tmp_path, "--only", only, *tiny, "--torch-python", "no-such-python")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["left_out"] == {"ddp-2": "no-such-python has no torch and torchvision"}
    found = {(row["part"], row["contender"]) for row in result["rows"]}
    assert found >= {
        ("resnet", "plain Theano, x[idx]"),
        ("resnet", "plain Theano, np.take(out=)"),
        ("resnet", "synkhronos"),
        ("allreduce", "synkhronos"),
        ("allreduce", "synkhronos, 8 in a step"),
        ("distribution", "synkhronos"),
        ("fork", "synkhronos"),
        ("timeline", "all ranks"),
        ("timeline", "the master alone"),
    }
    assert all(min(row["rounds"]) > 0 for row in result["rows"])
    page = (tmp_path / "results.md").read_text()
    for title in ("ResNet-50: training steps", "all_reduce", "Where a step's time goes"):
        assert f"## {title}" in page
        assert title in done.stdout
    assert "no result to quote" in page
    shown = run("--out", tmp_path, "--read")
    assert shown.stdout == done.stdout
