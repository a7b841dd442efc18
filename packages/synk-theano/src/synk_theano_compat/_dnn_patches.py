"""G3 to G5: what ``theano.gpuarray.dnn`` says and does, on GPUs and with a cuDNN of today."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Callable

from synk_theano_compat import _cudnn
from synk_theano_compat._patches import _rewrite

RNN_CLASSES = (
    "_RNNDescriptor",
    "_RNNParamSize",
    "_RNNSplitParams",
    "GpuDnnRNNOp",
    "GpuDnnRNNGradInputs",
    "GpuDnnRNNGradWeights",
    "RNNBlock",
)


def long_architectures() -> str:
    """G3: read the compute capability of newer GPUs right: ``compute_100`` is no 00.

    Theano looks at the last two digits and calls everything below 30 too old.
    """
    from theano.gpuarray import dnn

    _rewrite(
        dnn.dnn_available,
        "int(ctx.bin_id[-2:])",
        "int(''.join(filter(str.isdigit, str(ctx.bin_id))))",
        2,
    )
    return "dnn_available"


def header_in_version() -> str:
    """G4: compile modules anew that were compiled with another version of our header."""
    from theano.gpuarray.dnn import DnnBase

    text = (_cudnn.INCLUDE / "cudnn.h").read_bytes()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    version: Callable[[Any], tuple[Any, ...]] = DnnBase.c_code_cache_version

    def c_code_cache_version(self: Any) -> tuple[Any, ...]:
        return (*version(self), digest)

    DnnBase.c_code_cache_version = c_code_cache_version
    return "DnnBase.c_code_cache_version"


def no_recurrent_networks() -> str:
    """G5: say what to do where cuDNN 9 has no more what Theano's recurrent ops are made of.

    Nothing else uses them: Theano never puts them into a graph by itself.
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
                f"{name}: got cuDNN {version}, expected 5 to 8. cuDNN 9 has removed the interface "
                "to recurrent networks that Theano uses (cudnnRNNForwardTraining and its kin). "
                "Write the network with theano.scan or Lasagne's recurrent layers, which run on "
                "the GPU without cuDNN, or install cuDNN 8 (pip install 'nvidia-cudnn-cu12<9')"
            )
        initialise(self, *arguments, **options)

    return checked
