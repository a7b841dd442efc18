"""Faults like those that were mended last, each caught by the test that came with its repair."""

from __future__ import annotations

from ._fault import Fault, faults_of

_of_comm = faults_of("synk-comm", "synk_comm/")
_of_core = faults_of("synk-core", "synk_core/")
_of_extensions = faults_of("synk-extensions", "synkhronos/extensions/")

LATEST: tuple[Fault, ...] = (
    _of_comm(
        "comm-ranks-below-ranks",
        "refusals",
        "starting.py",
        'name, pid = os.environ.get(NO_RANKS, ""), os.getpid()',
        'name, pid = "", 1',
        "A program without a guard starts ranks from the ranks that load it.",
        "launch::test_missing_guard_is_said",
    ),
    _of_comm(
        "comm-errors-of-nobody",
        "error paths",
        "_core/guard.py",
        "        exc.__dict__[_RAISED_BY] = self.token\n        return exc",
        "        return exc",
        "A group does not know its own errors from those of the program's other groups.",
        "contract",
    ),
    _of_core(
        "core-drafts-stay",
        "atomicity",
        "files.py",
        "        with contextlib.suppress(OSError):\n            os.unlink(draft)\n        raise",
        "        raise",
        "A file that was not written to its end leaves its draft behind.",
        "files::test_drafts_have_names_that_nobody_can_guess_and_are_the_users_alone",
    ),
    _of_core(
        "core-undone-no-more",
        "atomicity",
        "_workers/interrupts.py",
        "            if not done:\n                _call_all(undo, returned)",
        "            if returned and not done:\n                _call_all(undo, returned)",
        "What fails while Ctrl-C waits is not undone.",
        "failures::test_ctrl_c_that_is_held_back_is_not_lost_by_an_error",
    ),
    _of_core(
        "core-status-of-lost-ranks",
        "life cycles",
        "_workers/watchdog.py",
        'b"cmd=abort exitcode=%d\\n" % (abs(code) or int(not leaving))',
        'b"cmd=abort exitcode=%d\\n" % abs(code)',
        "A job of MPI ends well when a rank has left it without a word.",
        "many_hosts::test_a_rank_that_is_lost_ends_the_job",
    ),
    _of_core(
        "core-batch-of-the-program",
        "plans",
        "_plan/rows.py",
        "return [*batch] if only_ints else",
        "return batch if only_ints else",
        "A delayed call computes other rows if the program changes its list of them.",
        "step::test_rows_are_those_of_when_the_act_was_made",
    ),
    _of_core(
        "core-frames-to-go-on",
        "refusals",
        "_shield.py",
        "        _nest(FRAMES)\n",
        "        _nest(FRAMES // 10)\n",
        "Near the limit of recursion a call begins that cannot end.",
        "lock::test_near_the_recursion_limit_nothing_begins_that_could_not_end",
    ),
    _of_core(
        "core-rounding-of-slices",
        "reductions",
        "_rank/outputs.py",
        "_RUN = 16",
        "_RUN = 1 << 30",
        "The rounding of a sum grows with the number of slices.",
        "function::test_rounding_does_not_grow_with_the_number_of_slices",
    ),
    _of_core(
        "core-cached-by-name",
        "graphs",
        "_graph/transfer/pickling.py",
        'if name == "__main__" or name not in sys.modules or not _is_found(name):',
        'if name == "__main__":',
        "Functions with a cache travel by a name that workers do not find.",
        "starting::test_workers_find_the_modules_that_the_master_has",
    ),
    _of_extensions(
        "ext-places-too-early",
        "plans",
        "train/_batches.py",
        "ahead = _PLACES - 1 - executor.prefetches",
        "ahead = _PLACES - 1",
        "A batch is drawn into the memory of one that is still to be computed.",
        "steps::test_places_are_kept_until_they_are_needed_again",
    ),
    _of_extensions(
        "ext-arrays-larger-than-files",
        "refusals",
        "train/_checkpoints.py",
        "        if self._left < 0:\n",
        "        if self._left < 0 and known:\n",
        "A damaged checkpoint may ask for any memory.",
        "training_files",
    ),
)
