"""The GPU benchmarks: their arithmetic, their plan, and what their jobs leave for others."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "benchmarks" / "gpu"))

from gpubench import cache, plan, tables
from gpubench.job import Settings, read_lines
from gpubench.tables import efficiency, images_per_s, median
from synk_benchmarks.results import alone


def steps(contender, gpus, *milliseconds, part="resnet"):
    times = tuple(ms / 1e3 for ms in milliseconds)
    return alone(part, "step", contender, gpus, times, images=64 * gpus)


def line_of(table, *beginning):
    (line,) = (line for line in table.lines if line[: len(beginning)] == list(beginning))
    return dict(zip(table.header, line))


def test_efficiency_is_images_per_second_and_gpu_beside_the_base():
    base = steps("a", 1, 90, 100, 500)
    assert median(base) == 0.1
    assert images_per_s(base) == pytest.approx(640)
    assert efficiency(base, base) == 1
    assert efficiency(steps("b", 2, 100), base) == pytest.approx(1)
    assert efficiency(steps("b", 4, 125), base) == pytest.approx(0.8)
    assert efficiency(steps("b", 1, 50), base) == pytest.approx(2)
    with pytest.raises(ValueError, match="expected steps"):
        efficiency(alone("resnet", "x", "a", 1, (1.0,)), base)


def test_the_table_of_steps_compares_with_both_plain_ones_and_with_ones_own():
    rows = [
        steps(tables.PLAIN, 1, 100),
        steps(tables.PLAIN_TAKE, 1, 80),
        steps(tables.OURS, 1, 90),
        steps(tables.OURS, 2, 102, 101, 103),
        steps(tables.OURS, 4, 110),
        steps(tables.OURS, 8, 94),
        steps("PyTorch DDP, defaults", 2, 40),
    ]
    table = tables.steps_table(rows)
    two = line_of(table, tables.OURS, "2")
    assert two["ms/step"] == "102.0"
    assert two["images/s"] == "1255"
    assert two[f"beside {tables.PLAIN}"] == "0.980"
    assert two[f"beside {tables.PLAIN_TAKE}"] == "0.784"
    assert two["beside its own 1 GPU"] == "0.882"
    assert two["target"] == ">= 0.97 NO"
    assert line_of(table, tables.OURS, "4")["target"] == ">= 0.97 NO"
    assert line_of(table, tables.PLAIN)["target"] == ""
    assert line_of(table, "PyTorch DDP, defaults")["beside its own 1 GPU"] == ""
    assert line_of(table, tables.OURS, "8")["target"] == ">= 0.95 yes"
    assert line_of(table, tables.OURS, "1")["target"] == ""
    beyond = {row.ranks: tables.median(row) for row in tables.beyond_plain(rows)}
    assert beyond == pytest.approx({1: -0.01, 2: 0.002, 4: 0.01, 8: -0.006})


def test_the_table_of_calls_has_the_ratio_to_the_bare_loop_of_the_same_size():
    def call(what, contender, seconds, nbytes):
        return alone("allreduce", what, contender, 2, (seconds,), nbytes=nbytes)

    rows = [
        call("1 KB", tables.OURS, 30e-6, 1024),
        call("1 KB", tables.BARE, 10e-6, 1024),
        call("102 MB", tables.OURS, 420e-6, 102_400_000),
        call("102 MB", "in a step", 390e-6, 102_400_000),
        call("102 MB", tables.BARE, 380e-6, 102_400_000),
        call("256 MB", tables.OURS, 1e-3, 256_000_000),
    ]
    table = tables.calls_table(rows, tables.BARE)
    small = line_of(table, "1 KB", "2", tables.OURS)
    assert (small["time"], small["beside bare NCCL"], small["target"]) == ("30 us", "3.00", "")
    assert line_of(table, "102 MB", "2", tables.OURS)["target"] == "<= 1.05 NO"
    assert line_of(table, "102 MB", "2", "in a step")["target"] == "<= 1.05 yes"
    unmatched = line_of(table, "256 MB")
    assert (unmatched["bandwidth"], unmatched["beside bare NCCL"]) == ("256 GB/s", "")


def test_the_plan_puts_together_what_one_process_can_measure():
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
    assert measures["ours-resnet-2"] == ("steps", "distribution")
    assert measures["ours-resnet-4"] == ("steps", "distribution", "timeline", "files")
    only = plan.groups(["timeline"], [1, 2])
    assert [job.name for jobs in only.values() for job in jobs] == ["ours-resnet-2"]
    with pytest.raises(ValueError, match="no part resnat"):
        plan.groups(["resnat"], [1])
    with pytest.raises(ValueError, match="from 1 on"):
        plan.groups(["resnet"], [0, 1])


def test_what_a_job_writes_is_read_and_half_a_line_is_left_out(tmp_path):
    row = steps("a", 2, 1, 2, 3)
    lines = [json.dumps(row.saved()), json.dumps({"about": {"x": "y"}}), '{"group": "res']
    (tmp_path / "rows").write_text("\n".join(lines))
    assert read_lines(tmp_path / "rows") == ([row], {"x": "y"})
    assert read_lines(tmp_path / "nothing") == ([], {})


def test_a_cache_travels_in_pieces_without_its_sources(tmp_path):
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


def test_ranks_get_devices_by_name():
    def devices(device):
        return Settings(device, 2, 1, 1, 32, True, "", (), False).devices()

    assert devices("cuda") == {"devices": ["cuda0", "cuda1"]}
    assert devices("opencl0:0") == {"devices": ["opencl0:0"] * 2}
    assert devices("cpu") == {"n_parallel": 2, "use_gpu": False}
