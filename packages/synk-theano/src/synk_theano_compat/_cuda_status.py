"""``python -m synk_theano_compat --cuda``: driver, devices and libraries, as values for JSON.

Asks the driver how many devices there are, for which it is initialised, but creates no context: no
device's memory is used. The process may hang or die of a broken driver; it is made to be a child.
"""

from __future__ import annotations

import ctypes
import glob
import os
import warnings
from typing import Any

from synk_theano_compat import _cuda, _cuda_find, _cudnn

_NAME_LENGTH = 256
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


def cuda_status() -> dict[str, Any]:
    """Return what is there of CUDA, what would be used, and under which name it is found.

    ``hardware``: the device files of NVIDIA's GPUs. ``libraries`` and ``headers``: all that were
    found, best first. ``prepared``: what was done for libgpuarray. ``missing``: what it will not
    find, and why. ``cudnn``: library, header and version that go together.
    """
    table = _cuda_find.here()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it is in "missing"
        prepared = _cuda.prepare()
    installation = _cudnn.find(table)
    return {
        "hardware": sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg")),
        "driver": list(_cuda.driver_version()),
        **_devices(),
        "prepared": dict(prepared),
        "missing": dict(_cuda.missing),
        "libraries": _listed(table.libraries),
        "headers": _listed(table.headers),
        "cudnn": None
        if installation is None
        else {
            "library": installation.library.path,
            "header": installation.header.path,
            "version": installation.version,
            "cuda_headers": _cudnn.header_folders(table, installation.header.path),
        },
        "path_variable": os.environ.get(_cuda_find.PATH_VARIABLE, ""),
    }


def _listed(found: dict[str, list[_cuda_find.Found]]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {"path": one.path, "version": list(one.version), "origin": one.origin} for one in all_
        ]
        for name, all_ in found.items()
    }


def _devices() -> dict[str, Any]:
    """Return the devices that this process may use, and what the driver says if it has none."""
    try:
        driver = ctypes.CDLL("libcuda.so")
    except OSError as error:
        return {"devices": [], "error": str(error)}
    status = driver.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return {"devices": [], "error": _meaning(driver, status)}
    return {"devices": [_device(driver, index) for index in range(count.value)], "error": ""}


def _meaning(driver: Any, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    return f"CUDA error {status}: {(text.value or b'unknown').decode(errors='replace')}"


def _device(driver: Any, index: int) -> dict[str, Any]:
    handle, number, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_LENGTH)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, _NAME_LENGTH, handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, handle)
        capability.append(number.value)
    return {
        "name": name.value.decode(errors="replace"),
        "memory": memory.value,
        "capability": capability,
    }
