"""G2 to G6, G15: make Theano's ``gpuarray.dnn``, written for cuDNN 5 to 7, work with 8 and 9."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import warnings
from typing import Any, Callable

from synk_theano_compat._patches import flags
from synk_theano_compat._patches.rewrite import in_c_code, rewrite

_NEW_HEADERS = "Your cuDNN version is more recent than Theano"
_PATHS = ("dnn.include_path", "dnn.library_path", "dnn.bin_path", "cuda.include_path")


found: list[int] = []
"""The version of the cuDNN whose library and header Theano's flags name by `set_paths`, if any."""


def set_paths() -> str:
    """G2: find cuDNN and its header, and set the flags of Theano that name their folders.

    Runs before ``theano.gpuarray.dnn`` is executed, which asks cuDNN for its version at once, and
    only if pygpu is there. The user's ``dnn.*_path`` and ``cuda.include_path`` are searched first.
    """
    from theano import config

    from synk_theano_compat._cuda import cudnn, find

    # Theano warns that cuDNN is newer than itself, which is the reason for these patches.
    warnings.filterwarnings("ignore", message=_NEW_HEADERS, category=UserWarning)
    if config.dnn.enabled == "False":
        return "dnn.enabled=False"
    if sys.modules.get("pygpu") is None:
        return "not needed: there is no pygpu"
    users = {name: _users(config, name) for name in _PATHS}
    own = [find.SearchFolder(path, name) for name, path in users.items() if path]
    machine = find.search_path(os.environ, sys.path, find.linker_folders())
    files = find.scan([*own, *machine])
    installation = cudnn.find(files)
    if installation is None:
        return "no cuDNN was found with a header of its version"
    folders = cudnn.header_folders(files, installation.header.path)
    if folders is None:
        return f"cuDNN {installation.version} was found, but not CUDA's headers (cuda_runtime.h)"
    # A user's own cudnn.h without a version stands in for the installed one, as ours does.
    own_header = os.path.join(users["dnn.include_path"], "cudnn.h")
    has_own = bool(users["dnn.include_path"]) and os.path.isfile(own_header)
    if not has_own or cudnn.header_version(own_header) is not None:
        _set(config, "dnn.include_path", str(cudnn.INCLUDE))
    _set(config, "cuda.include_path", cudnn.gathered_headers(folders))
    links = cudnn.linked_library(installation.library.path)
    _set(config, "dnn.library_path", links)
    _set(config, "dnn.bin_path", links)
    if config.dnn.include_path == str(cudnn.INCLUDE):
        found.append(installation.version)
    return f"cuDNN {installation.version}: {installation.library.path}"


def _users(config: Any, name: str) -> str:
    """Return the value that the user has set for a flag; empty if it is Theano's default."""
    section, _, flag = name.partition(".")
    value = getattr(getattr(config, section), flag)  # `is_default` is set when a flag is read
    return "" if getattr(type(getattr(config, section)), flag).is_default else value


def _set(config: Any, name: str, value: str) -> None:
    section, _, flag = name.partition(".")
    setattr(getattr(config, section), flag, value)
    flags.chosen[name] = value


_plain: list[Any] = []
"""``theano.function`` while something stands in for it."""


def insert_version() -> str:
    """G15: tell Theano cuDNN's version, which `set_paths` has found out.

    To ask for it Theano compiles a program, in each process again and under the global compile
    lock: four ranks that start at the same time wait for each other for two seconds.
    """
    import theano

    from synk_theano_compat._cuda import cudnn

    if not found:
        return "not needed"
    version, plain = found[-1], theano.function
    # What was loaded first under this name, as PyTorch's own, is what Theano's modules get.
    name = f"libcudnn.so.{version // (1000 if version < 90000 else 10000)}"
    if cudnn.library_version(name) != version:
        return f"left to Theano: another {name} is loaded"
    _plain.append(plain)

    @functools.wraps(plain)
    def function(inputs: Any, outputs: Any = None, *rest: Any, **options: Any) -> Any:
        op = getattr(getattr(outputs, "owner", None), "op", None)
        if type(op).__name__ == "DnnVersion":
            return lambda: (version, version)  # the header's, and the library's
        return plain(inputs, outputs, *rest, **options)

    theano.function = function
    return "theano.function"


def remove_version() -> str:
    """Undo `insert_version`."""
    import theano

    if not _plain:
        return "nothing to do"
    theano.function = _plain.pop()
    return "theano.function"


def long_architectures() -> str:
    """G3: read the compute capability of newer GPUs: ``compute_100`` is 100, not 00.

    Theano reads the last two digits and rejects everything below 30 as too old.
    """
    from theano.gpuarray import dnn

    rewrite(
        dnn.dnn_available,
        "int(ctx.bin_id[-2:])",
        "int(''.join(filter(str.isdigit, str(ctx.bin_id))))",
        2,
    )
    return "dnn_available"


def header_in_version() -> str:
    """G4: recompile modules that were compiled with another version of our header."""
    from theano.gpuarray.dnn import DnnBase

    from synk_theano_compat._cuda.cudnn import INCLUDE

    text = (INCLUDE / "cudnn.h").read_bytes()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    version: Callable[[Any], tuple[Any, ...]] = DnnBase.c_code_cache_version

    def c_code_cache_version(self: Any) -> tuple[Any, ...]:
        return (*version(self), digest)

    DnnBase.c_code_cache_version = c_code_cache_version
    return "DnnBase.c_code_cache_version"


RNN_CLASSES = (
    "_RNNDescriptor",
    "_RNNParamSize",
    "_RNNSplitParams",
    "GpuDnnRNNOp",
    "GpuDnnRNNGradInputs",
    "GpuDnnRNNGradWeights",
    "RNNBlock",
)


def no_recurrent_networks() -> str:
    """G5: refuse Theano's recurrent ops, whose functions cuDNN 9 has removed, with a cure.

    Theano never puts these ops into a graph by itself.
    """
    from theano.gpuarray import dnn

    for name in RNN_CLASSES:
        kind = getattr(dnn, name)
        kind.__init__ = _refusing(dnn, name, kind.__init__)
    return ", ".join(RNN_CLASSES)


def _refusing(dnn: Any, name: str, initialise: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialise)
    def checked(self: Any, *arguments: Any, **options: Any) -> None:
        version = dnn.version(raises=False)
        if version >= 9000:
            raise RuntimeError(
                f"{name}: got cuDNN {version}, expected 5 to 8. cuDNN 9 has removed the functions "
                "for recurrent networks that Theano uses (cudnnRNNForwardTraining and others). "
                "Write the network with theano.scan or Lasagne's recurrent layers, which run on "
                "the GPU without cuDNN, or install cuDNN 8 (pip install 'nvidia-cudnn-cu12<9')"
            )
        initialise(self, *arguments, **options)

    return checked


FIRST_USE = "  if (c_set_tensorNd(input, APPLY_SPECIFIC(input)) != 0)\n    return 1;\n"

EMPTY_SUM = """\
  if (PyGpuArray_SIZE(input) == 0) {
    p = 0;
    rsz = 1;
    for (unsigned int i = 0; i < PyGpuArray_NDIM(input); i++) {
      if (params->c_axis & (1U << i))
        continue;
      dims[p] = PyGpuArray_DIM(input, i);
      rsz *= dims[p++];
    }
    if (rsz != 0 && (indices != NULL || (params->red_op != CUDNN_REDUCE_TENSOR_ADD &&
                                         params->red_op != CUDNN_REDUCE_TENSOR_NORM1 &&
                                         params->red_op != CUDNN_REDUCE_TENSOR_NORM2))) {
      PyErr_SetString(PyExc_ValueError, "zero-size array to a reduction which has no identity");
      return 1;
    }
    if (theano_prep_output(output, p, dims, input->ga.typecode, GA_C_ORDER, c) != 0)
      return 1;
    if (indices != NULL && theano_prep_output(indices, p, dims, GA_UINT, GA_C_ORDER, c) != 0)
      return 1;
    if (GpuArray_memset(&(*output)->ga, 0) != GA_NO_ERROR) {
      PyErr_SetString(PyExc_RuntimeError, "could not fill an empty sum with zeros");
      return 1;
    }
    return 0;
  }
"""


def sound_reductions() -> str:
    """G6: use cuDNN only for the reductions that it computes right; an empty sum is 0.

    cuDNN's reductions refuse arrays without elements, which Theano passes on; and those of float16
    read rows of an odd length at addresses that the device forbids (cuDNN 9.14 on Hopper), after
    which the whole process can no longer use its GPU. Theano's own kernels do the rest.

    An op of other C code than that of Theano 1.0.5 raises LookupError when it is made.
    """
    from theano.gpuarray import dnn
    from theano.scalar.basic import Mul

    initialise = dnn.GpuDnnReduction.__init__

    @functools.wraps(initialise)
    def patched(self: Any, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        in_c_code(self, "support_code_struct", FIRST_USE, EMPTY_SUM + FIRST_USE)

    dnn.GpuDnnReduction.__init__ = patched

    def wanted(node: Any) -> bool:
        variables = (*node.inputs, *node.outputs)
        if any(getattr(variable, "dtype", "") == "float16" for variable in variables):
            return False
        # An empty product is 1, not 0; Theano's kernel refuses it.
        return not isinstance(getattr(node.op, "scalar_op", None), Mul)

    lowered = [dnn.local_dnn_reduction, dnn.local_cudnn_maxandargmax]
    for optimizer in lowered:
        optimizer.transform = _only(wanted, optimizer.transform)
    return ", ".join(["GpuDnnReduction", *(optimizer.__name__ for optimizer in lowered)])


def _only(wanted: Callable[[Any], bool], transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(transform)
    def checked(node: Any) -> Any:
        return transform(node) if wanted(node) else None

    return checked
