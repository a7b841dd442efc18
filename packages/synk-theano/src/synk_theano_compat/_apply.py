"""Which patch is applied around the execution of which of Theano's modules.

A patch that fails is reported with its name as a :class:`RuntimeWarning` and the others go on: an
environment must never be worse off with this package than without it. The names are those of the
comments in ``_patches.py`` and its neighbours. ``SYNK_THEANO_COMPAT_SKIP`` (a comma-separated list
of them) leaves single patches out; it exists for the tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple

from synk_theano_compat import (
    _flags,
    _gpu,
    _lasagne,
    _patches,
    _probes,
    _reshape,
    _scipy,
    _setuptools,
    locks,
)
from synk_theano_compat._hook import DOWNSAMPLE

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

SKIP_VARIABLE = "SYNK_THEANO_COMPAT_SKIP"


class Step(NamedTuple):
    """One patch: its name, what it is for, and the function that returns what it did."""

    name: str
    purpose: str
    run: Callable[[], str]


BEFORE: dict[str, tuple[Step, ...]] = {
    "theano": (
        Step("P7", "names that NumPy 1.24 removed", _patches.numpy_aliases),
        Step("P4", "scan's C extension on Python >= 3.11", _patches.no_scan_extension),
        Step("P10", "setuptools", _setuptools.plain_distutils),
    ),
    "theano.scalar.basic_scipy": (Step("P13", "SciPy's functions", _scipy.lend_functions),),
    "theano.tensor.blas": (Step("P13", "SciPy's algebra", _scipy.lend_linalg),),
    "theano.tensor.slinalg": (Step("P13", "SciPy's algebra", _scipy.lend_linalg),),
    "theano.tensor.nnet.abstract_conv": (Step("P13", "SciPy's filters", _scipy.hide_signal),),
    "theano.tensor.nnet.conv": (Step("P13", "SciPy's filters", _scipy.hide_signal),),
    "theano.gpuarray": (Step("G7", "a GPU that is not there", _gpu.told_in_one_line),),
    "theano.gpuarray.dnn": (Step("G2", "cuDNN 8 and 9", _gpu.lead_to_cudnn),),
    "theano.gpuarray.linalg": (Step("P10", "setuptools", _setuptools.lend),),
    "lasagne": (Step("P10", "setuptools", _setuptools.lend),),
}
AFTER: dict[str, tuple[Step, ...]] = {
    "theano": (Step("P10", "setuptools", _setuptools.usual_distutils),),
    "theano.configparser": (Step("P1", "flags the user has not set", _flags.set_defaults),),
    "theano.gof.compilelock": (
        Step("lock", "fast compile lock", locks.fast_lock),
        Step("unlock", "compile lock after failures", locks.released_lock),
    ),
    "theano.gof.cmodule": (Step("P14", "programs that try the compiler", _probes.private),),
    "theano.gof.cc": (Step("P2", "disk cache for ops without props", _patches.cache_no_props),),
    "theano.gof.op": (Step("P3", "same C code version everywhere", _patches.stable_version),),
    "theano.scalar.basic": (Step("P15", "np.product", _patches.numpy_product),),
    "theano.tensor.basic": (Step("P12", "reshape of no rows", _reshape.empty_reshape),),
    "theano.tensor.opt": (Step("P11", "products with a scalar", _patches.prod_by_scalar),),
    "theano.tensor.blas": (
        Step("P5", "Gemm of empty matrices", _patches.empty_gemm),
        Step("P8", "BatchedDot without BLAS", _patches.batched_dot),
        Step("P13", "SciPy's algebra", _scipy.take_back_linalg),
    ),
    "theano.tensor.blas_c": (Step("P9", "Gemv into fresh memory", _patches.fresh_gemv),),
    "theano.scalar.basic_scipy": (Step("P13", "SciPy's functions", _scipy.take_back_functions),),
    "theano.tensor.slinalg": (Step("P13", "SciPy's algebra", _scipy.take_back_linalg),),
    "theano.tensor.nnet.abstract_conv": (Step("P13", "SciPy's filters", _scipy.show_signal),),
    "theano.tensor.nnet.conv": (Step("P13", "SciPy's filters", _scipy.show_signal),),
    "theano.tensor.sort": (Step("P6", "top-k indexing", _patches.topk_index),),
    "theano.tensor.signal.pool": (Step("P6", "pooling in Python", _patches.pool_index),),
    "lasagne": (
        Step("P10", "setuptools", _setuptools.take_back),
        Step("L1", "Lasagne's old word for conv2d", _lasagne.hide_image_shape_warning),
        Step("L2", "pooling without its import", _lasagne.import_pooling),
    ),
    "theano.gpuarray.dnn": (
        Step("G3", "compute capability of three digits", _gpu.long_architectures),
        Step("G4", "C code compiled with our header", _gpu.header_in_version),
        Step("G5", "recurrent networks, gone in cuDNN 9", _gpu.no_recurrent_networks),
        Step("G6", "cuDNN's reductions", _gpu.sound_reductions),
    ),
    "theano.gpuarray.linalg": (Step("P10", "setuptools", _setuptools.take_back),),
    "pygpu": (Step("G1", "CUDA's libraries", _gpu.watch_pygpu),),
}

applied: list[tuple[str, str, str]] = []
"""What was done in this process: (patch, purpose, result), in order."""


def _run(steps: tuple[Step, ...]) -> None:
    skipped = os.environ.get(SKIP_VARIABLE, "").split(",")
    for step in steps:
        if step.name in skipped:
            applied.append((step.name, step.purpose, "skipped"))
            continue
        try:
            result = step.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, Theano must still be imported
            import warnings

            result = f"failed: {type(error).__name__}: {error}"
            warnings.warn(
                f"synk_theano_compat: patch {step.name} ({step.purpose}) {result}; going on "
                "without it",
                RuntimeWarning,
                stacklevel=2,
            )
        applied.append((step.name, step.purpose, result))


def before(name: str) -> None:
    """Do what has to be done before module ``name`` is executed."""
    _run(BEFORE.get(name, ()))


def after(name: str) -> None:
    """Do what has to be done once module ``name`` was executed."""
    _run(AFTER.get(name, ()))


def failed(name: str) -> None:
    """Take back what was lent to module ``name``, whose execution failed."""
    lent = (
        _setuptools.usual_distutils,
        _setuptools.take_back,
        _scipy.take_back_functions,
        _scipy.take_back_linalg,
        _scipy.show_signal,
    )
    _run(tuple(step for step in AFTER.get(name, ()) if step.run in lent))


def downsample_spec() -> ModuleSpec | None:
    """Find our stand-in for ``theano.tensor.signal.downsample``, which Theano 1.0 removed."""
    from importlib.util import spec_from_file_location

    if "downsample" in os.environ.get(SKIP_VARIABLE, "").split(","):
        return None
    return spec_from_file_location(DOWNSAMPLE, Path(__file__).with_name("_downsample.py"))
