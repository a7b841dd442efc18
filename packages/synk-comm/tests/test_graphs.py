"""Graphs of CUDA: what is recorded, with a stand-in for the driver library."""

from __future__ import annotations

import pytest

from synk_comm import cuda

STREAM = 0xABC


class Driver(cuda.Driver):
    """Records what is called, and answers as a driver with these nodes would."""

    def __init__(self, nodes=(), refused=""):
        self.nodes, self.refused, self.called = nodes, refused, []
        self._lib = self

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.called.append(name)
            if name == self.refused:
                return 900
            return getattr(self, f"do_{name}", lambda *_: 0)(*arguments) or 0

        call.argtypes = ()
        return call

    def do_cuGetErrorString(self, status, text):
        text._obj.value = b"not permitted"

    def do_cuStreamEndCapture(self, stream, graph):
        graph._obj.value = 77

    def do_cuGraphGetNodes(self, graph, nodes, count):
        if nodes is None:
            count._obj.value = len(self.nodes)
            return 0
        nodes[:] = range(1, len(self.nodes) + 1)
        return 0 if self.nodes else 1  # as CUDA 13's

    def do_cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.nodes[node - 1][0]

    def do_cuGraphMemcpyNodeGetParams(self, node, copy):
        _, copy[4], copy[15] = self.nodes[node - 1]

    def do_cuGraphInstantiateWithFlags(self, graph, recorded, flags):
        assert recorded.value == 77
        graph._obj.value = 88


KERNEL, MEMSET, HOST_CALL = (0, 0, 0), (2, 0, 0), (3, 0, 0)
ON_DEVICE, DIRTY, UPLOAD, DOWNLOAD = (1, 2, 2), (1, (5 << 32) + 2, 2), (1, 1, 2), (1, 2, 1)


def test_recorded_work_is_launched():
    driver, ran = Driver([KERNEL, MEMSET, ON_DEVICE, DIRTY]), []
    assert driver.record_graphs(STREAM, lambda _: ran.append(list(driver.called))) == [88]
    assert ran == [["cuStreamBeginCapture_v2"]]
    driver.launch(88, STREAM)
    driver.drop_graph(88)
    assert driver.called[1] == "cuStreamEndCapture"
    assert driver.called[-3:] == ["cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy"]


@pytest.mark.parametrize("node", [UPLOAD, DOWNLOAD, HOST_CALL])
def test_graphs_that_use_host_memory_are_refused(node):
    driver = Driver([KERNEL, node])
    with pytest.raises(cuda.CudaError, match="host memory was recorded"):
        driver.record_graphs(STREAM, lambda _: None)
    assert driver.called[-1] == "cuGraphDestroy"


def test_work_that_cannot_be_recorded():
    driver = Driver()
    driver.do_cuStreamEndCapture = lambda *_: 901
    with pytest.raises(cuda.CudaError, match="cannot be recorded"):
        driver.record_graphs(STREAM, lambda _: None)
    driver = Driver(refused="cuGraphInstantiateWithFlags")
    with pytest.raises(cuda.CudaError, match=r"not permitted \(CUDA error 900\)"):
        driver.record_graphs(STREAM, lambda _: None)
    assert driver.called[-1] == "cuGraphDestroy"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_stream_does_not_go_on_recording_after_an_error(error):
    driver = Driver()

    def run(_):
        raise error

    with pytest.raises(error):
        driver.record_graphs(STREAM, run)
    assert driver.called == ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphDestroy"]


def test_recorded_work_is_cut_into_several_graphs():
    driver = Driver([KERNEL])
    assert driver.record_graphs(STREAM, lambda cut: [cut(), cut()]) == [88] * 3
    one = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphGetNodes", "cuGraphGetNodes"]
    one += ["cuGraphNodeGetType", "cuGraphInstantiateWithFlags", "cuGraphDestroy"]
    assert driver.called == 3 * one


def test_a_graph_between_two_cuts_may_be_empty():
    driver = Driver()
    assert driver.record_graphs(STREAM, lambda cut: [cut(), cut()]) == [88] * 3


def test_an_error_after_a_cut_leaves_no_graph():
    driver = Driver([KERNEL])

    def run(cut):
        cut()
        driver.nodes = [UPLOAD]
        cut()

    with pytest.raises(cuda.CudaError, match="host memory was recorded"):
        driver.record_graphs(STREAM, run)
    assert driver.called.count("cuGraphExecDestroy") == 1
    ended = driver.called.count("cuStreamEndCapture")
    assert driver.called.count("cuGraphDestroy") == ended > 2
