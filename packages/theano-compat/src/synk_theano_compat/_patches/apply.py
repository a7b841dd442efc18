"""The table of patches: which of them run before and after which of Theano's modules.

A failing patch is reported by name as a :class:`RuntimeWarning` and the others go on: this package
must never make an environment worse. ``SYNK_THEANO_COMPAT_SKIP`` (names, separated by commas)
leaves patches out, for the tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple

from synk_theano_compat import locks

from . import compilation, failures, flags, imports, lasagne, numpy, products, reshape
from .gpu import contexts, convolutions, cudnn, pygpu, sums

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

SKIP_VARIABLE = "SYNK_THEANO_COMPAT_SKIP"


class Patch(NamedTuple):
    """A patch, as functions that return their result; `undo` runs after the module, or its failure.

    Only patches before a module have one.
    """

    name: str
    purpose: str
    run: Callable[[], str]
    undo: Callable[[], str] | None = None


_ALGEBRA = Patch("P13", "SciPy's algebra", imports.insert_linalg, imports.remove_linalg)
_FILTERS = Patch("P13", "SciPy's filters", imports.hide_signal, imports.show_signal)
_SETUPTOOLS = Patch("P10", "setuptools", imports.insert_pkg_resources, imports.remove_pkg_resources)

BEFORE: dict[str, tuple[Patch, ...]] = {
    "theano": (
        Patch("P7", "names that NumPy 1.24 removed", numpy.builtin_names),
        Patch("P4", "scan's C extension on Python >= 3.11", compilation.no_scan_extension),
        Patch("P10", "setuptools", imports.plain_distutils, imports.usual_distutils),
    ),
    "theano.scalar.basic_scipy": (
        Patch("P13", "SciPy's functions", imports.insert_functions, imports.remove_functions),
    ),
    "theano.tensor.blas": (_ALGEBRA,),
    "theano.tensor.slinalg": (_ALGEBRA,),
    "theano.tensor.io": (
        Patch("P17", "MPI at import", imports.insert_mpi4py, imports.remove_mpi4py),
    ),
    "theano.tensor.nnet.abstract_conv": (_FILTERS,),
    "theano.tensor.nnet.conv": (_FILTERS,),
    "theano.gpuarray": (Patch("G7", "a GPU that is not there", pygpu.one_line_warning),),
    "theano.gpuarray.dnn": (
        Patch("G2", "cuDNN 8 and 9", cudnn.set_paths),
        Patch("G15", "cuDNN's version", cudnn.insert_version, cudnn.remove_version),
    ),
    "theano.gpuarray.linalg": (_SETUPTOOLS,),
    "lasagne": (_SETUPTOOLS,),
}
AFTER: dict[str, tuple[Patch, ...]] = {
    "theano.compile.function_module": (
        Patch("P18", "Ctrl-C as an optimization begins", failures.kept_interrupts),
    ),
    "theano.configparser": (Patch("P1", "flags that the user has not set", flags.set_defaults),),
    "theano.gof.compilelock": (
        Patch("lock", "fast compile lock", locks.fast_lock),
        Patch("unlock", "compile lock after failures", locks.released_lock),
    ),
    "theano.gof.cmodule": (Patch("P14", "test programs", compilation.private_probes),),
    "theano.gof.cc": (Patch("P2", "disk cache for ops without props", compilation.cache_no_props),),
    "theano.gof.graph": (Patch("P16", "observers after errors", failures.released_observers),),
    "theano.gof.op": (Patch("P3", "same C code version everywhere", compilation.stable_version),),
    "theano.scalar.basic": (Patch("P15", "np.product", numpy.no_product),),
    "theano.tensor.basic": (Patch("P12", "reshape of no rows", reshape.empty_reshape),),
    "theano.tensor.opt": (Patch("P11", "products with a scalar", products.prod_by_scalar),),
    "theano.tensor.blas": (
        Patch("P5", "Gemm of empty matrices", products.empty_gemm),
        Patch("P8", "BatchedDot without BLAS", products.batched_dot),
    ),
    "theano.tensor.blas_c": (Patch("P9", "Gemv into fresh memory", products.fresh_gemv),),
    "theano.tensor.sort": (Patch("P6", "top-k indexing", numpy.topk_index),),
    "theano.tensor.signal.pool": (Patch("P6", "pooling in Python", numpy.pool_index),),
    "lasagne": (
        Patch("L1", "Lasagne's old argument of conv2d", lasagne.ignore_image_shape_warning),
        Patch("L2", "pooling without its import", lasagne.import_pooling),
        Patch("L3", "points of TPSTransformerLayer", lasagne.whole_grid),
    ),
    "theano.gpuarray.dnn": (
        Patch("G3", "compute capability of three digits", cudnn.long_architectures),
        Patch("G4", "C code compiled with our header", cudnn.header_in_version),
        Patch("G5", "recurrent networks, gone in cuDNN 9", cudnn.no_recurrent_networks),
        Patch("G6", "cuDNN's reductions", cudnn.sound_reductions),
        Patch("G8", "one stream for cuDNN and libgpuarray", convolutions.one_stream),
        Patch("G9", "choices of cuDNN's algorithms", convolutions.remembered_choices),
        Patch("G12", "sums by channels", sums.quick_channel_sums),
    ),
    "theano.gpuarray": (
        Patch("G10", "several names of a device", pygpu.several_names),
        Patch("G13", "several CUDA devices", contexts.several_devices),
    ),
    "theano.gpuarray.elemwise": (
        Patch("G14", "reductions are compiled once", sums.cached_reductions),
    ),
    "theano.gpuarray.opt": (Patch("G11", "no default context", pygpu.no_default_context),),
    "pygpu": (Patch("G1", "CUDA's libraries", pygpu.watch_pygpu),),
}

applied: list[tuple[str, str, str]] = []
"""The patches applied in this process, in order: (name, purpose, result)."""


def before(name: str) -> None:
    """Apply the patches before the execution of module ``name``."""
    _run(BEFORE.get(name, ()))


def after(name: str) -> None:
    """Apply the patches after the execution of module ``name``."""
    undo(name)
    _run(AFTER.get(name, ()))


def undo(name: str) -> None:
    """Undo those patches before the execution of module ``name`` that are for its time alone."""
    _run([patch._replace(run=patch.undo) for patch in BEFORE.get(name, ()) if patch.undo])


def removed_module(name: str) -> ModuleSpec | None:
    """Return the spec of our stand-in for a module that Theano 1.0 removed; None if skipped."""
    from importlib.util import spec_from_file_location

    last = name.rpartition(".")[2]
    if last in _skipped():
        return None
    return spec_from_file_location(name, Path(__file__).with_name(f"{last}.py"))


def _run(patches: Iterable[Patch]) -> None:
    for patch in patches:
        if patch.name in _skipped():
            result = "skipped"
        else:
            try:
                result = patch.run()
            except Exception as error:  # noqa: BLE001 - Theano must be imported all the same
                import warnings

                result = f"failed: {type(error).__name__}: {error}"
                warnings.warn(
                    f"synk_theano_compat: patch {patch.name} ({patch.purpose}) {result}; "
                    "continuing without it",
                    RuntimeWarning,
                    stacklevel=2,
                )
        applied.append((patch.name, patch.purpose, result))


def _skipped() -> list[str]:
    return os.environ.get(SKIP_VARIABLE, "").split(",")
