"""Driver, GPUs, CUDA's libraries, pygpu, cuDNN and NCCL, if the machine has a GPU."""

from __future__ import annotations

import glob
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from synkhronos_cli._probe import Answer, ask
from synkhronos_cli._terminal import in_units

from .items import GOOD, MISSING, WARNING, Item
from .software import OF_THEANO

PYGPU_TIMEOUT_S = 60.0
DEVICE_TIMEOUT_S = 300.0
_LIBRARIES = {"nvrtc": "compiles kernels", "cublas": "matrix products"}
_APT = "apt install python3-pygpu libgpuarray-dev (pygpu is on no Python index; it needs mako)"
_KERNEL_DRIVER = "/proc/driver/nvidia/version"

_PYGPU = """
import pygpu
answer(version=pygpu.__version__, api=list(pygpu.gpuarray.api_version()), path=pygpu.__file__)
"""

# As in a user's first function: a context, a kernel, a matrix product and a convolution.
_DEVICE = """
import numpy as np
import synk_theano
import theano, theano.tensor as T, theano.gpuarray as gpuarray
if not gpuarray.pygpu_activated:
    gpuarray.use("cuda0")
from theano.gpuarray import dnn
x = theano.shared(np.ones((8, 8), "float32"))
value = float(theano.function([], T.exp(T.dot(x, x)).sum())())
assert abs(value / (64 * np.exp(8.0)) - 1) < 1e-3, value
problem = "" if dnn.dnn_available(None) else str(dnn.dnn_available.msg)
number = -1 if problem else dnn.version(raises=False)
if not problem:
    try:
        image = theano.shared(np.ones((2, 3, 8, 8), "float32"))
        filters = theano.shared(np.ones((4, 3, 3, 3), "float32"))
        result = theano.function([], T.nnet.conv2d(image, filters))()
        assert np.allclose(np.asarray(result), 27, rtol=1e-3), result
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
answer(cudnn=number, cudnn_problem=problem)
"""

# Where other Pythons keep NVIDIA's wheels: these are suggested, never used without asking.
_ELSEWHERE = (
    "/opt/*/lib/python3*/site-packages/nvidia",
    "/opt/*/.venv/lib/python3*/site-packages/nvidia",
    "/opt/*/envs/*/lib/python3*/site-packages/nvidia",
    "/usr/local/lib/python3*/*-packages/nvidia",
    "/usr/lib/python3/dist-packages/nvidia",
    "~/.local/lib/python3*/site-packages/nvidia",
    "~/*conda*/lib/python3*/site-packages/nvidia",
)


def examine_gpus(cuda: Answer, has_gpu: bool) -> list[Item]:
    """Return the items about GPUs.

    Args:
        cuda: The answer of ``python -m synk_theano_compat --cuda``; empty without Theano.
        has_gpu: Whether the machine has one; if not, nothing is needed, and there is one item.
    """
    if not OF_THEANO:
        found = "not looked for: PyTensor has no back end for them, and functions run on the cores"
        return [Item("GPUs", GOOD, found)]
    if not has_gpu:
        found = "none: functions run on the cores, and need nothing for GPUs"
        return [Item("GPUs", GOOD, found)]
    if cuda.problem:
        cure = "timeout 20 nvidia-smi"
        return [Item("CUDA", MISSING, cuda.problem, cure)]
    items = [_driver(cuda), _gpus(cuda)]
    items += [_library(cuda, name, purpose) for name, purpose in _LIBRARIES.items()]
    pygpu = _pygpu(ask(_PYGPU, PYGPU_TIMEOUT_S))
    items.append(pygpu)
    if any(item.broken for item in items):
        items.append(_cudnn(cuda, None))
    else:
        device = ask(_DEVICE, DEVICE_TIMEOUT_S)
        items += [_theano(device), _cudnn(cuda, device)]
    return [*items, _precision(), _graphs(cuda), _nccl(cuda), _nccl4py(cuda)]


def _extra(cuda: Answer) -> str:
    major = (cuda.get("driver") or [0])[0]
    return f"pip install 'synkhronos[gpu-cu{13 if major >= 13 else 12}]'"


def _cure(cuda: Answer, install: str = "") -> str:
    """Return how to get CUDA's libraries: from another Python on this machine, or from pip."""
    install = install or _extra(cuda)
    elsewhere = other_pythons()
    if elsewhere and not cuda.get("path_variable"):
        return f"export SYNKHRONOS_CUDA_PATH={os.pathsep.join(elsewhere)}, or {install}"
    return install


def other_pythons() -> list[str]:
    """Return the folders in which other Pythons of this machine have NVIDIA's wheels."""
    patterns = list(_ELSEWHERE)
    for name in ("python3", "python"):
        program = shutil.which(name)
        if program is not None:
            prefix = os.path.dirname(os.path.dirname(program))
            patterns.append(f"{glob.escape(prefix)}/lib/python3*/site-packages/nvidia")
    found = [path for pattern in patterns for path in glob.glob(os.path.expanduser(pattern))]
    return list(dict.fromkeys(sorted(found)))


def _precision() -> Item:
    name, override = "SYNKHRONOS_PRECISION", "NVIDIA_TF32_OVERRIDE"
    given = os.environ.get(name, "").strip() or "default"
    meanings = {
        "default": "cuDNN may round factors of convolutions to TF32; matrix products are full",
        "float32": f"full, by {name}",
        "tf32": f"factors of convolutions and of matrix products may be rounded to TF32, by {name}",
    }
    if given not in meanings:
        return Item("float32", WARNING, f"{name}={given} is no precision", f"unset {name}")
    if os.environ.get(override) == "0":
        if given == "tf32":
            return Item("float32", WARNING, f"{name}=tf32, but {override}=0", f"unset {override}")
        return Item("float32", GOOD, f"full, by {override}=0")
    return Item("float32", GOOD, meanings[given])


def _graphs(cuda: Answer) -> Item:
    name = "SYNKHRONOS_CUDA_GRAPHS"
    given = os.environ.get(name, "").strip() or "auto"
    policies = {
        "auto": "functions are recorded, and replayed where that is quicker",
        "always": f"functions are recorded and replayed where possible, by {name}",
        "0": f"not used, by {name}",
        "never": f"not used, by {name}",
    }
    if given not in policies:
        return Item("CUDA graphs", WARNING, f"{name}={given} is no policy", f"unset {name}")
    if tuple(cuda.get("driver") or (0, 0)) < (11, 4):
        return Item("CUDA graphs", GOOD, "not used: they need a driver for CUDA 11.4 or newer")
    return Item("CUDA graphs", GOOD, policies[given])


def _driver(cuda: Answer) -> Item:
    major, minor = cuda.get("driver") or (0, 0)
    if major == 0:
        return Item(
            "driver",
            MISSING,
            f"there is a GPU ({', '.join(cuda.get('hardware') or [])}), but no libcuda.so.1",
            "apt install nvidia-driver (in a container: docker run --gpus all)",
        )
    found = f"for CUDA {major}.{minor}; libcuda.so: {(cuda.get('prepared') or {}).get('cuda')}"
    try:
        with open(_KERNEL_DRIVER, encoding="utf-8", errors="replace") as file:
            found += f"; {file.readline().strip()}"
    except OSError:
        pass  # some containers do not have it
    return Item("driver", GOOD, found)


def _gpus(cuda: Answer) -> Item:
    devices = cuda.get("devices") or []
    if not devices:
        cure = "nvidia-smi; CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all"
        return Item("GPUs", MISSING, str(cuda.get("error") or "none usable"), cure)
    return Item("GPUs", GOOD, "; ".join(_described(*pair) for pair in enumerate(devices)))


def _described(index: int, device: dict[str, Any]) -> str:
    capability = ".".join(map(str, device["capability"]))
    memory = in_units(device["memory"])
    return f"cuda{index}: {device['name']}, {memory}, compute capability {capability}"


def _library(cuda: Answer, name: str, purpose: str) -> Item:
    problem = (cuda.get("missing") or {}).get(name)
    if problem:
        install = _extra(cuda)
        major, minor = cuda.get("driver") or (0, 0)
        if name == "nvrtc" and major:
            # This driver refuses the code of a newer one.
            suffix = "" if major >= 13 else "-cu12"
            install += f" 'nvidia-cuda-nvrtc{suffix}=={major}.{minor}.*'"
        cure = _cure(cuda, install)
        return Item(f"lib{name}", MISSING, f"{problem} ({purpose})", cure)
    return Item(f"lib{name}", GOOD, str((cuda.get("prepared") or {}).get(name)))


def _pygpu(pygpu: Answer) -> Item:
    name = "pygpu"
    if pygpu.problem:
        return Item(name, MISSING, pygpu.problem, _APT)
    found = f"{pygpu['version']}, libgpuarray's interface {pygpu['api']}, {pygpu['path']}"
    if pygpu["api"][:1] != [2]:
        return Item(name, MISSING, f"{found}; Theano needs interface 2", _APT)
    return Item(name, GOOD, found)


def _theano(device: Answer) -> Item:
    name = "Theano on cuda0"
    if device.problem:
        cure = "THEANO_FLAGS=device=cuda0 python -c 'import synk_theano, theano' shows more"
        return Item(name, MISSING, device.problem, cure)
    return Item(name, GOOD, "kernels and matrix products give right results")


def _cudnn(cuda: Answer, device: Answer | None) -> Item:
    name, found = "cuDNN", cuda.get("cudnn")
    if found is None:
        libraries = [one["path"] for one in (cuda.get("libraries") or {}).get("cudnn", [])]
        text = f"{libraries[0]}, but no cudnn.h of its version" if libraries else "not found"
        return Item(name, WARNING, f"{text}; convolutions are slower without it", _cure(cuda))
    text = f"{found['version']}: {found['library']}, {found['header']}"
    if found["cuda_headers"] is None:
        return Item(name, WARNING, f"{text}; but no cuda_runtime.h with crt/", _cure(cuda))
    if device is not None and not device.problem and device["cudnn_problem"]:
        return Item(name, WARNING, f"{text}; {device['cudnn_problem']}", _cure(cuda))
    if found["version"] >= 9000:
        text += "; without Theano's recurrent ops (RNNBlock), which need cuDNN 8 or older"
    return Item(name, GOOD, text)


def _nccl(cuda: Answer) -> Item:
    problem = (cuda.get("missing") or {}).get("nccl")
    if not problem:
        return Item("NCCL", GOOD, str((cuda.get("prepared") or {}).get("nccl")))
    if len(cuda.get("devices") or []) < 2:
        return Item("NCCL", GOOD, f"{problem}; a single GPU does not need it")
    text = f"{problem}; collectives go through host memory"
    return Item("NCCL", WARNING, text, _cure(cuda))


def _nccl4py(cuda: Answer) -> Item:
    try:
        return Item("nccl4py", GOOD, version("nccl4py"))
    except PackageNotFoundError:
        pass
    if len(cuda.get("devices") or []) < 2:
        return Item("nccl4py", GOOD, "not installed; a single GPU does not need it")
    text = "not installed; collectives go through host memory"
    return Item("nccl4py", WARNING, text, "pip install 'synkhronos[gpu]'")
