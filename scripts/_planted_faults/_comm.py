"""Faults of synk-comm."""

from __future__ import annotations

from ._fault import faults_of

_fault = faults_of("synk-comm", "synk_comm/")

COMM = (
    _fault(
        "comm-average-by-count",
        "reductions",
        "_core/ops.py",
        "calm(np.divide, total, math.fsum(weights), out=total)",
        "calm(np.divide, total, float(len(weights)), out=total)",
        "A weighted average is divided by the number of ranks, not by the sum of the weights.",
        "reductions contract_local",
    ),
    _fault(
        "comm-in-place-third",
        "reductions",
        "_core/reductions.py",
        "fabric.rank in plan.ranks[:2])",
        "fabric.rank in plan.ranks[:3])",
        "The third rank, whose out is x itself, adds what it has already overwritten.",
        "contract_local contract_shm reductions",
    ),
    _fault(
        "comm-symmetric-tail",
        "plans",
        "_core/reductions.py",
        "part = -(-nbytes // fabric.size // 64) * 64\n    start, end",
        "part = nbytes // fabric.size // 64 * 64\n    start, end",
        "The last bytes of a large symmetric array belong to no rank's part where it is uneven.",
        "contract_local contract_shm reductions",
    ),
    _fault(
        "comm-bundle-byte-order",
        "plans",
        "_core/lists.py",
        "    np.concatenate([arrays[which].reshape(-1) for which in bundle.members], out=packed)",
        "    packed = np.concatenate([arrays[which].reshape(-1) for which in bundle.members])",
        "Small arrays of a list that are not of native byte order arrive with their bytes swapped.",
        "contract_local reductions",
    ),
    _fault(
        "comm-negative-weight",
        "refusals",
        "_core/ops.py",
        "if not (math.isfinite(value) and value >= 0.0):",
        "if not math.isfinite(value):",
        "A negative weight is taken.",
        "reductions contract_local",
    ),
    _fault(
        "comm-run-signal-status",
        "error paths",
        "run.py",
        "return exitcode if exitcode >= 0 else 128 - exitcode",
        "return exitcode if exitcode >= 0 else -exitcode",
        "The exit status of python -m synk_comm.run is the signal's number, without the 128.",
        "run",
    ),
    _fault(
        "comm-split-blames",
        "error paths",
        "_collectives/splitting.py",
        "return lost(members[exc.rank], exc.reason)",
        "return lost(exc.rank, exc.reason)",
        "A rank that is lost while a group is split is called by its number in the new group.",
        "splitting",
    ),
    _fault(
        "comm-dead-before-watched",
        "life cycles",
        "_system/liveness.py",
        "except ProcessLookupError:\n            self._gone.append(rank)\n            return\n",
        "except ProcessLookupError:\n            return\n",
        "A rank that died before the others began to watch it is never missed.",
        "groups faults launch",
    ),
    _fault(
        "comm-zmq-abort-passed-on",
        "error paths",
        "_backends/zmq/fabric.py",
        "who = number - 1 if number else peer.rank",
        "who = peer.rank",
        "Over ZeroMQ, who passes on that a group was given up is taken for who gave it up.",
        "zmq splitting contract_zmq",
    ),
    _fault(
        "comm-half-a-letter",
        "atomicity",
        "_collectives/point_to_point.py",
        "steps.guard.leave(exc, in_step=not began and isinstance(exc, CommTimeout))",
        "steps.guard.leave(exc, in_step=isinstance(exc, CommTimeout))",
        "A group goes on after a long message that was sent by half.",
        "contract_local contract_shm",
    ),
    _fault(
        "comm-graph-host-memory",
        "graphs",
        "cuda.py",
        "            if kind.value == _HOST_NODE:\n                return False",
        "            if kind.value == _HOST_NODE:\n                continue",
        "A graph that calls the host is replayed.",
        "graphs",
    ),
)
