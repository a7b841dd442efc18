"""The patches for GPUs by name, each of which imports what it needs when it runs.

Nearly every process that imports Theano has no GPU: it does not load what they are made of.
"""

from __future__ import annotations

import logging


def watch_pygpu() -> str:
    """G1: have CUDA's libraries found when pygpu first needs them."""
    from synk_theano_compat import _cuda

    return _cuda.watch_pygpu()


def lead_to_cudnn() -> str:
    """G2: find cuDNN, and tell Theano where it is."""
    from synk_theano_compat import _cudnn

    return _cudnn.lead_to_cudnn()


def long_architectures() -> str:
    """G3: read the compute capability of newer GPUs right."""
    from synk_theano_compat import _dnn_patches

    return _dnn_patches.long_architectures()


def header_in_version() -> str:
    """G4: compile modules anew that were compiled with another version of our header."""
    from synk_theano_compat import _dnn_patches

    return _dnn_patches.header_in_version()


def no_recurrent_networks() -> str:
    """G5: say what to do where cuDNN has no recurrent networks any more."""
    from synk_theano_compat import _dnn_patches

    return _dnn_patches.no_recurrent_networks()


def sound_reductions() -> str:
    """G6: leave to cuDNN only the reductions that it does right."""
    from synk_theano_compat import _dnn_reductions

    return _dnn_reductions.sound_reductions()


def told_in_one_line() -> str:
    """G7: say plainly that a flag names a GPU where pygpu is not, without "NoneType: None"."""
    logging.getLogger("theano.gpuarray").addFilter(_in_one_line)
    return "theano.gpuarray"


def _in_one_line(record: logging.LogRecord) -> bool:
    if str(record.msg).startswith("pygpu was configured but could not be imported"):
        record.msg = (
            "Theano's flags name a GPU, but pygpu cannot be imported (or is older than 0.7): "
            "computing on the CPU; `synkhronos doctor` says what is missing"
        )
        if record.exc_info and record.exc_info[0] is None:
            record.exc_info = None
    return True
