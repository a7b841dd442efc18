"""Work in Jupyter: a notebook as a reader runs it, and kernels that are interrupted or end."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import nbformat
import psutil
import pytest
from _checkout import ROOT
from jupyter_client import KernelManager
from nbclient import NotebookClient

from synk_testing import is_there

NOTEBOOK = ROOT / "docs/notebooks/first.ipynb"
LIMIT_S = 280
PNG = "iVBORw0KGgo"

START = """
import os, time
from pathlib import Path
import numpy as np, theano, theano.tensor as T
import synkhronos as synk
synk.fork(2)
"""
# Defined where a reader would: in a cell. A row says for how many seconds its rank is busy.
BUSY = """
class Busy(theano.Op):
    __props__ = ("folder",)

    def __init__(self, folder):
        self.folder = folder

    def make_node(self, seconds):
        return theano.Apply(self, [seconds], [seconds.type()])

    def perform(self, node, inputs, outputs):
        Path(self.folder, f"began.{os.getpid()}").touch()
        time.sleep(inputs[0].max())
        Path(self.folder, f"ended.{os.getpid()}").touch()
        outputs[0][0] = inputs[0].copy()


x = T.matrix("x")
f = synk.function([x], (Busy(FOLDER)(x).sum(), "sum"), name="busy", proof=False)


def call(of_master, of_worker):
    return float(f(np.array([[of_master], [of_worker]], dtype=theano.config.floatX)))


call(0, 0)
"""


class Kernel:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        # Open for as long as kernels are started anew.
        self._file = (folder / "stderr.txt").open("w")
        self.manager.start_kernel(cwd=str(folder), stdout=self._file, stderr=self._file)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def workers(self) -> list[int]:
        found = psutil.Process(self.pid).children(recursive=True)
        return [p.pid for p in found if "synk_core._workers.worker" in p.cmdline()]

    def finish(self, number: str) -> list[Any]:
        """Return the outputs of a cell, whose execution has begun, when it has ended."""
        outputs = []
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind = message["msg_type"]
            if kind in ("stream", "execute_result", "display_data", "error"):
                outputs.append(nbformat.v4.output_from_msg(message))
            elif kind == "status" and message["content"]["execution_state"] == "idle":
                return outputs

    def run(self, code: str) -> Any:
        """Run a cell that fails in nothing and shows a value; return that output."""
        outputs = self.finish(self.client.execute(code))
        shown = [output for output in outputs if output.output_type != "stream"]
        assert [output.output_type for output in shown] == ["execute_result"], outputs
        return shown[0]

    def fails(self, code: str) -> str:
        return error_of(self.finish(self.client.execute(code)))

    def busy(self) -> None:
        """Give it workers and a function `call(of_master, of_worker)`."""
        self.run(START)
        self.define()
        self.works()  # the next call, the third, is not proved: the master computes its own rows
        for mark in [*self.folder.glob("began.*"), *self.folder.glob("ended.*")]:
            mark.unlink()

    def define(self) -> None:
        assert result_of(self.run(BUSY.replace("FOLDER", repr(str(self.folder))))) == "0.0"

    def works(self) -> None:
        assert result_of(self.run("call(0.25, 0.5)")) == "0.75"

    def wait_for(self, *marks: str) -> None:
        wait_until(lambda: all((self.folder / mark).exists() for mark in marks), f"no {marks}")

    def end(self) -> None:
        # As a server does it: a kernel that is killed after its workers have gone cannot clean up.
        if self.manager.is_alive():
            self.manager.shutdown_kernel()
        self.client.stop_channels()
        self.manager.cleanup_resources()
        self._file.close()


def result_of(output: Any) -> str:
    return output.data["text/plain"]


def error_of(outputs: list[Any]) -> str:
    assert outputs[-1].output_type == "error", outputs
    return f"{outputs[-1].ename}: {outputs[-1].evalue}"


def wait_until(done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + LIMIT_S / 2
    while not done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    started = Kernel(tmp_path)
    yield started
    started.end()


def test_the_notebook_runs_and_shows_the_promised_results(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = {cell.source.splitlines()[-1]: cell.outputs for cell in cells}
    printed = "".join(o.text for found in outputs.values() for o in found if "text" in o)
    assert re.fullmatch(
        r"Synkhronos attempting to use 2 (of|processes on) \d+ detected CPU cores...\n"
        r"Synkhronos: 2 CPU processes initialized, master rank: 0\n"
        r"(epoch \d+ of 25: train_loss [\d.e-]+, valid_loss [\d.e-]+, .*\n){25}",
        printed,
    ), printed
    results = {
        line: [o.data for o in found if o.output_type in ("execute_result", "display_data")]
        for line, found in outputs.items()
    }
    assert [r["text/plain"] for r in results["synk.fork(2)"]] == ["2"]
    for line in ("np.allclose(parallel(rows), serial(rows))", 'history["valid_error"][-1] < 0.1'):
        assert [r["text/plain"] for r in results[line]] == ["True"]
    (table,) = results["synk.stats()"]
    for text in (table["text/plain"], table["text/html"]):
        assert {"calls", "train: update", "375"} <= set(re.split(r"  +|\n", text))
    (figure,) = results['plot_training("training.csv")']
    assert figure["image/png"].startswith(PNG)
    assert results["synk.close()"] == []


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs"), cell.id
        assert cell.get("execution_count") is None
        assert not cell.metadata
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


def test_definitions_of_cells_reach_the_workers_and_a_second_fork_is_refused(
    kernel: Kernel,
) -> None:
    kernel.busy()
    kernel.works()
    pids = {int(mark.suffix[1:]) for mark in kernel.folder.glob("began.*")}
    assert pids == {kernel.pid, *kernel.workers()}, "both computed"
    table = kernel.run("synk.stats()").data
    for text in (table["text/plain"], table["text/html"]):
        assert {"calls", "busy"} <= set(re.split(r"[^a-z]+", text))
    kernel.define()
    kernel.works()
    workers = kernel.workers()
    assert re.match(r"AlreadyForked: .*call close\(\) first", kernel.fails(START))
    assert kernel.workers() == workers
    assert result_of(kernel.run(START.replace("synk.fork", "synk.close(); synk.fork"))) == "2"
    assert not set(workers) & set(kernel.workers())
    wait_until(lambda: not any(map(is_there, workers)), "close() left workers")
    assert "call fork() to start a new one" in kernel.fails("call(0, 0)")


def test_the_stop_button_ends_a_call_on_all_ranks_and_all_goes_on(kernel: Kernel) -> None:
    kernel.busy()
    workers = kernel.workers()
    cell = kernel.client.execute("call(0, 60)")
    kernel.wait_for(f"ended.{kernel.pid}", f"began.{workers[0]}")
    time.sleep(0.3)  # until it waits
    kernel.manager.interrupt_kernel()
    assert error_of(kernel.finish(cell)).startswith("KeyboardInterrupt")
    assert all(map(is_there, workers))
    kernel.works()
    assert kernel.workers() == workers


def test_with_the_kernel_go_its_workers_and_their_memory(kernel: Kernel) -> None:
    """A killed kernel is a killed master, as synk-core tests it; this one restarts."""
    kernel.busy()
    kernel.run("data = synk.data(np.ones((1000, 1000))); data")
    workers = kernel.workers()
    assert len(workers) == 1
    kernel.manager.restart_kernel()
    wait_until(lambda: not any(map(is_there, workers)), "a worker is left")
    kernel.client.wait_for_ready(timeout=LIMIT_S)
    kernel.busy()
    kernel.works()
    assert not set(kernel.workers()) & set(workers)
