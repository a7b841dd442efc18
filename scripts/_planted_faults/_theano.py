"""Faults of synk-theano."""

from __future__ import annotations

from ._fault import faults_of

_fault = faults_of("synk-theano", test="{}.py")

THEANO = (
    _fault(
        "theano-minibatch-index",
        "plans",
        "synk_theano/_api/planner.py",
        "item.minibatch and selection is not None and selection.index is not None",
        "False",
        "A list of indexes reads wrong rows of data that hold a minibatch only.",
        "test_function test_data test_fuzz",
    ),
    _fault(
        "theano-output-from-the-end",
        "refusals",
        "synk_theano/_api/planner.py",
        "if not is_int(position) or not 0 <= position < count:",
        "if not is_int(position) or position >= count:",
        "output_subset takes negative positions, which are other outputs in a sliced call.",
        "test_theano_arguments test_function",
    ),
    _fault(
        "theano-linking-constants",
        "linking",
        "synk_theano/_graph/transfer/linking.py",
        "inputs.append((variable.type, variable.signature()))",
        "inputs.append(variable.type)",
        "Nodes that differ by a constant alone share C code, which has the first one's constant.",
        "test_linking test_flat",
    ),
    _fault(
        "theano-equal-ops",
        "linking",
        "synk_theano/_graph/transfer/flat.py",
        "self._by_value.setdefault((item, _state(item)), place)",
        "self._by_value.setdefault(item, place)",
        "Ops that Theano calls equal travel as one, though they compute different things.",
        "test_linking test_flat",
    ),
    _fault(
        "theano-bare-unaligned",
        "linking",
        "synk_theano/_graph/fast_call.py",
        ' == getattr(spec.variable.type, "dtype", None) and array.flags.aligned',
        ' == getattr(spec.variable.type, "dtype", None)',
        "Arrays whose memory is not aligned go to the compiled code without Theano's look at them.",
        "test_bare test_fuzz",
    ),
    _fault(
        "theano-in-place",
        "atomicity",
        "synk_theano/_graph/compile.py",
        "            if item.shared:\n                item.mutable = False",
        "            if item.shared and item.update is None:\n                item.mutable = False",
        "Functions overwrite the very arrays that are to be put back when a rank fails.",
        "test_atomic test_journal",
    ),
    _fault(
        "theano-done-but-not-undone",
        "atomicity",
        "synk_theano/_rank/rank.py",
        "            self.flight.mark(self.serial, ActOutcome.UNDONE)\n"
        "            self.journal.undo()\n            raise",
        "            self.flight.mark(self.serial, ActOutcome.UNDONE)\n            raise",
        "A worker that was done keeps its new values when the master fails after it.",
        "test_atomic test_failures",
    ),
    _fault(
        "theano-first-gone",
        "error paths",
        "synk_theano/_workers/pool.py",
        "return min(gone, key=_cause_order)",
        "return gone[0]",
        "Of several workers that are gone the first is named, not the one that was killed.",
        "test_pool",
    ),
    _fault(
        "theano-watchdog-forked",
        "life cycles",
        "synk_theano/_workers/watchdog.py",
        "        waiting.register(master.fd, select.POLLIN)\n",
        "        pass\n",
        "The watchdog takes a child that the master forked for the master, and waits for ever.",
        "test_watchdog",
    ),
    _fault(
        "compat-product-along-axes",
        "reductions",
        "synk_theano_compat/_patches/products.py",
        "replacement = transform(node) if node.op.axis is None else None",
        "replacement = transform(node)",
        "prod(c * x, axis=0) has the scalar to the power of all items, not of those of an axis.",
        "compat/test_numbers compat/test_patches",
    ),
)
