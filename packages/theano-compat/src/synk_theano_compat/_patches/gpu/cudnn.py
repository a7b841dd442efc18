"""G2 to G6, G15: make Theano's ``gpuarray.dnn``, written for cuDNN 5 to 7, work with 8 and 9."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from typing import Any

from synk_theano_compat._patches import flags
from synk_theano_compat._patches.rewrite import in_c_code_of, rewrite, wrap

_NEW_HEADERS = "Your cuDNN version is more recent than Theano"
_PATHS = ("dnn.include_path", "dnn.library_path", "dnn.bin_path", "cuda.include_path")

found: list[int] = []
"""The version of the cuDNN that `set_paths` has named in Theano's flags, if any."""


def set_paths() -> str:
    """G2: find cuDNN and its header, and set the flags of Theano that name their folders.

    ``theano.gpuarray.dnn`` asks cuDNN for its version at once, if there is pygpu. The user's
    ``dnn.*_path`` and ``cuda.include_path`` are searched first.
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
    """G15: give Theano the version of cuDNN that `set_paths` has found.

    Theano would compile a program for it in each process, under the global compile lock: four ranks
    that start together wait for each other for two seconds.
    """
    import theano

    from synk_theano_compat._cuda import cudnn

    if not found:
        return "not needed"
    version = found[-1]
    # Theano's modules get the first library loaded under this name, such as PyTorch's own.
    name = f"libcudnn.so.{version // (1000 if version < 90000 else 10000)}"
    if cudnn.library_version(name) != version:
        return f"left to Theano: another {name} is loaded"
    _plain.append(theano.function)

    @wrap(theano, "function")
    def function(plain: Any, inputs: Any, outputs: Any = None, *rest: Any, **options: Any) -> Any:
        op = getattr(getattr(outputs, "owner", None), "op", None)
        if type(op).__name__ == "DnnVersion":
            return lambda: (version, version)  # the header's, and the library's
        return plain(inputs, outputs, *rest, **options)

    return "theano.function"


def remove_version() -> str:
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

    @wrap(DnnBase, "c_code_cache_version")
    def version(plain: Any, self: Any) -> tuple[Any, ...]:
        return (*plain(self), digest)

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

    def checked(plain: Any, self: Any, *arguments: Any, **options: Any) -> None:
        version = dnn.version(raises=False)
        if version >= 9000:
            raise RuntimeError(
                f"{type(self).__name__}: got cuDNN {version}, expected 5 to 8. cuDNN 9 has removed "
                "the functions for recurrent networks that Theano uses (cudnnRNNForwardTraining "
                "and others). Write the network with theano.scan or Lasagne's recurrent layers, "
                "which run on the GPU without cuDNN, or install cuDNN 8 (pip install "
                "'nvidia-cudnn-cu12<9')"
            )
        plain(self, *arguments, **options)

    for name in RNN_CLASSES:
        wrap(getattr(dnn, name), "__init__")(checked)
    return ", ".join(RNN_CLASSES)


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

    cuDNN's reductions refuse arrays without elements; and those of float16 read rows of an odd
    length at addresses that the device forbids (cuDNN 9.14 on Hopper), after which the process can
    no longer use its GPU. Theano's own kernels do the rest.
    """
    from theano.gpuarray import dnn
    from theano.scalar.basic import Mul

    edit = "support_code_struct", FIRST_USE, EMPTY_SUM + FIRST_USE
    in_c_code_of(dnn.GpuDnnReduction, [edit])

    def checked(transform: Any, node: Any) -> Any:
        variables = (*node.inputs, *node.outputs)
        if any(getattr(variable, "dtype", "") == "float16" for variable in variables):
            return None
        # An empty product is 1, not 0; Theano's kernel refuses it.
        is_product = isinstance(getattr(node.op, "scalar_op", None), Mul)
        return None if is_product else transform(node)

    lowered = [dnn.local_dnn_reduction, dnn.local_cudnn_maxandargmax]
    for optimizer in lowered:
        wrap(optimizer, "transform")(checked)
    return ", ".join(["GpuDnnReduction", *(optimizer.__name__ for optimizer in lowered)])
