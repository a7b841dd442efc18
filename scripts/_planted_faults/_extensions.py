"""Faults of synk-extensions."""

from __future__ import annotations

from ._fault import faults_of

_fault = faults_of("synk-extensions")

EXTENSIONS = (
    _fault(
        "ext-decay-late",
        "plans",
        "synkhronos/extensions/train/_learning_rate.py",
        "sum(change <= t for change in changes)",
        "sum(change < t for change in changes)",
        "A rate that changes at given epochs changes one epoch late.",
        "train_schedules",
    ),
    _fault(
        "ext-plateau-forgets",
        "life cycles",
        "synkhronos/extensions/train/_learning_rate.py",
        "self._rate, self._best = rate, best",
        "self._rate = rate",
        "A plateau that goes on from a checkpoint has forgotten the best loss.",
        "train_schedules checkpoint",
    ),
    _fault(
        "ext-later-checkpoints",
        "life cycles",
        "synkhronos/extensions/train/_checkpoint_files.py",
        "kept = paths[:present] if self.keep is None else paths[:present][-self.keep :]",
        "kept = paths if self.keep is None else paths[-self.keep :]",
        "After training has gone back, checkpoints of later steps stay, and may push out the new.",
        "checkpoint",
    ),
    _fault(
        "ext-local-of-rank-0",
        "reductions",
        "synkhronos/extensions/train/_checkpoint_contents.py",
        'return np.mean(values, axis=0, dtype="float64").astype(values[0].dtype)',
        "return np.asarray(values[0])",
        "On another number of ranks local averages go on from rank 0's, not from their average.",
        "trainer_ranks",
    ),
    _fault(
        "ext-centre-of-one-rank",
        "reductions",
        "synkhronos/extensions/sync.py",
        'scalar(size * alpha, param.dtype, "beta")',
        'scalar(alpha, param.dtype, "beta")',
        "The centre of EASGD is pulled by the mean of the ranks' distances, not by their sum.",
        "sync",
    ),
    _fault(
        "ext-step-without-rows",
        "plans",
        "synkhronos/extensions/train/_step.py",
        "T.switch(T.gt(mark, 0), new, target)",
        "new",
        "A rank without rows takes its own step again with the gradient of the one before.",
        "sync",
    ),
    _fault(
        "ext-failed-step-counts",
        "life cycles",
        "synkhronos/extensions/sync.py",
        "            results = synk.step(*acts)\n"
        "            self._has_begun, self.steps = True, steps\n",
        "            self._has_begun, self.steps = True, steps\n"
        "            results = synk.step(*acts)\n",
        "A step that failed counts, so the next synchronisation comes early or not at all.",
        "sync_trainer",
    ),
    _fault(
        "ext-replicas-not-saved",
        "life cycles",
        "synkhronos/extensions/train/_checkpoint_contents.py",
        'self._own |= {"params", "optimizer"}',
        "self._own |= set()",
        "A checkpoint within an epoch of local steps has the master's parameters for all ranks.",
        "sync_trainer",
    ),
    _fault(
        "ext-norm-in-float32",
        "reductions",
        "synkhronos/extensions/updates/_wrappers.py",
        'squares = [T.sum(T.sqr(T.cast(store, "float64"))) for store in stores(parts)]',
        "squares = [T.sum(T.sqr(store)) for store in stores(parts)]",
        "The norm of an exploding gradient overflows, and the gradient is clipped to nothing.",
        "updates_wrappers",
    ),
    _fault(
        "ext-gradient-unweighted",
        "reductions",
        "synkhronos/extensions/train/_step.py",
        'all_reduce(self.flat_grad, op="avg", weights=self.grad_function)',
        'all_reduce(self.flat_grad, op="avg")',
        "Ranks count alike in the gradient's average, however many rows each of them has.",
        "train",
    ),
    _fault(
        "ext-clean-status",
        "error paths",
        "synkhronos_cli/_app.py",
        "    if left and not dry_run:\n        raise click.exceptions.Exit(1)\n",
        "",
        "synkhronos clean exits with 0 although something could not be removed.",
        "cli",
    ),
    _fault(
        "ext-valid-without-data",
        "refusals",
        "synkhronos/extensions/train/_trainer.py",
        "if (valid is None) != (valid_data is None):",
        "if valid is None and valid_data is not None:",
        "A Trainer takes a validation function without data for it.",
        "trainer",
    ),
    _fault(
        "ext-ctrl-c-not-given-back",
        "life cycles",
        "synkhronos/extensions/train/_interrupt.py",
        "            signal.signal(number, usual)",
        "            self._usual = {}",
        "After a run, SIGTERM still goes to the run's handler (Ctrl-C is given back twice).",
        "trainer_sigterm",
    ),
)
