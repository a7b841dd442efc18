"""The four measurements, with the public interface only. Each returns values for JSON.

A measurement is a table: a row has ``what``, its ``seconds`` here, and ``peers``, the seconds of
plain ways to do the same.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List

import numpy as np

import synkhronos as synk
from synk_core.engine import TITLE, T, library

from .peers import Peers
from .plain import FUNCTIONS, PlainProcesses, values
from .turns import medians, timed

Measurement = Dict[str, Any]
ForkArguments = Dict[str, Any]

BUDGET_S = 0.6
_COLUMNS = 1024
_KIB = (64, 1024, 16 * 1024)
_ROWS = 20_000


def measure_call(fork: ForkArguments, size: int) -> Measurement:
    """Measure the fixed cost of a call, with a function that computes nearly nothing."""
    with Peers(size) as peers:
        synk.fork(**fork, verbose=False)
        x = T.fmatrix("x")
        f = synk.function([x], x.sum(), name="bench call")
        plain = library.function([x], x.sum())
        synk.distribute()
        rows = np.ones((4 * size, 1), "float32")
        data = f.build_inputs(rows)
        measures = {
            "Data": timed(f, data),
            "array": timed(f, rows),
            "as_theano": timed(f.as_theano, rows),
            f"plain {TITLE}": timed(plain, rows),
        }
        if size > 1:
            measures["Pipe round trip"] = timed(peers.round_trip)
            measures["Barrier"] = peers.barrier
        seconds = medians(measures, 2 * BUDGET_S)
        synk.close()
    names = {"Data": "f(Data)", "array": "f(NumPy array)", "as_theano": "f.as_theano(array)"}
    beside = {name: value for name, value in seconds.items() if name not in names}
    rows_of = [_row(shown, seconds[name], beside) for name, shown in names.items()]
    return _result("call", "A call of a function with nothing to do", size, rows_of)


def measure_scatter(fork: ForkArguments, size: int) -> Measurement:
    """Measure the cost of passing an input to all ranks."""
    rows = []
    with Peers(size) as peers:
        synk.fork(**fork, verbose=False)
        x = T.fmatrix("x")
        # Reads an entry per row: all of the input has to be there, little is computed.
        f = synk.function([x], x[:, 0].sum(), name="bench scatter")
        synk.distribute()
        for kib in _KIB:
            array = np.ones((max(size, kib * 1024 // (4 * _COLUMNS)), _COLUMNS), "float32")
            target = np.empty_like(array)
            data = f.build_inputs(array)
            measures = {
                "array": timed(f, array),
                "Data": timed(f, data),
                "NumPy copy": timed(np.copyto, target, array),
            }
            if size > 1:
                measures["pickles through Pipes"] = timed(peers.scatter, array)
            seconds = medians(measures, BUDGET_S)
            beside = {name: seconds[name] for name in measures if name not in ("array", "Data")}
            rows.append(_row(f"{_size(kib)}, f(NumPy array)", seconds["array"], beside))
            rows.append(_row(f"{_size(kib)}, f(Data)", seconds["Data"], beside))
        synk.close()
    return _result("scatter", "An input for all processes, and a call that reads it", size, rows)


def measure_allreduce(fork: ForkArguments, size: int) -> Measurement:
    """Measure the cost of reducing a shared variable over the ranks."""
    rows = []
    with Peers(size) as peers:
        synk.fork(**fork, verbose=False)
        variables = [library.shared(np.ones(256 * kib, "float32")) for kib in _KIB]
        touch = synk.function([], [v.sum() for v in variables], name="bench all_reduce")
        synk.distribute()
        touch()
        for kib, variable in zip(_KIB, variables):
            array = np.ones(256 * kib, "float32")
            measures = {
                # Averages of ones: the numbers stay as they are, however often.
                "here": timed(synk.all_reduce, variable, "avg"),
                "NumPy copy": timed(array.copy),
            }
            if size > 1:
                measures["pickles through Pipes"] = timed(peers.all_reduce, array)
            seconds = medians(measures, BUDGET_S)
            here = seconds.pop("here")
            rows.append(_row(f"{_size(kib)}, all_reduce", here, seconds))
        synk.close()
    return _result("allreduce", "A shared variable, averaged over all processes", size, rows)


def measure_scaling(fork: ForkArguments, size: int) -> Measurement:
    """Measure one call on more and more ranks, beside plain functions in their own processes.

    If this process uses a GPU, a plain function uses it in this process.
    """
    array, matrix = values(_ROWS)
    rows, results = [], []
    for what, function in FUNCTIONS.items():
        expected = function(np, array, matrix).mean(dtype=float)
        x, w = T.fmatrix("x"), library.shared(matrix)
        y = function(T, x, w).mean()
        with contextlib.ExitStack() as stack:
            if isinstance(w.type, T.TensorType):
                peers = stack.enter_context(PlainProcesses(what, _ROWS)).measures
            else:
                peers = {f"plain {TITLE}": timed(library.function([x], y), array)}
            for n in _counts(size):
                synk.fork(**_first(fork, n), verbose=False)
                f = synk.function([x], y, name="bench scaling")
                synk.distribute()
                data = f.build_inputs(array)
                if not np.isclose(f(data), expected, rtol=1e-4, atol=1e-5):
                    raise ArithmeticError(f"{n} processes: got {f(data)}, expected {expected}")
                seconds = medians({"here": timed(f, data), **peers}, BUDGET_S)
                synk.close()
                here = seconds.pop("here")
                rows.append(_row(f"{what}, {n} process{'es' if n > 1 else ''}", here, seconds))
                results.append({"what": what, "n": n, "seconds": here, "rows": _ROWS})
    table = _result("scaling", f"One call on {_ROWS} rows x {array.shape[1]}", size, rows)
    return {**table, "results": results}


MEASURES: Dict[str, Callable[[ForkArguments, int], Measurement]] = {
    "call": measure_call,
    "scatter": measure_scatter,
    "allreduce": measure_allreduce,
    "scaling": measure_scaling,
}


def _counts(size: int) -> List[int]:
    """1, 2, 4 ... and all of them."""
    powers = [1 << k for k in range(size.bit_length()) if 1 << k < size]
    return [*powers, size]


def _first(fork: ForkArguments, n: int) -> ForkArguments:
    if fork.get("devices"):
        return {**fork, "devices": fork["devices"][:n]}
    return {**fork, "n_parallel": n}


def _row(what: str, seconds: float, peers: Dict[str, float]) -> Dict[str, Any]:
    return {"what": what, "seconds": seconds, "peers": peers}


def _result(name: str, title: str, size: int, rows: List[Dict[str, Any]]) -> Measurement:
    return {"bench": name, "title": title, "processes": size, "rows": rows}


def _size(kib: int) -> str:
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"
