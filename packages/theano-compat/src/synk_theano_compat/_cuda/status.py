"""``python -m synk_theano_compat --cuda``: driver, devices and libraries, as values for JSON.

Initialises the driver to count the devices, but creates no context, so no device's memory is used.
A broken driver may hang or kill the process: run it as a child.
"""

from __future__ import annotations

import ctypes
import glob
import os
import warnings
from typing import Any

from . import cudnn, find, libraries

_NAME_LENGTH = 256
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


def cuda_status() -> dict[str, Any]:
    """Return which parts of CUDA there are, and which of them would be used.

    ``hardware``: the device files of NVIDIA's GPUs. ``libraries``, ``headers``: all found, best
    first. ``prepared``, ``missing``: see ``libraries.py``. ``cudnn``: a library and a header of one
    version.
    """
    files = find.scan_machine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "missing" has the same
        prepared = libraries.prepare()
    installation = cudnn.find(files)
    return {
        "hardware": sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg")),
        "driver": list(libraries.driver_version()),
        **_devices(),
        "prepared": dict(prepared),
        "missing": dict(libraries.missing),
        "libraries": _listed(files.libraries),
        "headers": _listed(files.headers),
        "cudnn": None
        if installation is None
        else {
            "library": installation.library.path,
            "header": installation.header.path,
            "version": installation.version,
            "cuda_headers": cudnn.header_folders(files, installation.header.path),
        },
        "path_variable": os.environ.get(find.PATH_VARIABLE, ""),
    }


def _listed(found: dict[str, list[find.FoundFile]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [one._asdict() for one in all_] for name, all_ in found.items()}


def _devices() -> dict[str, Any]:
    """Return the devices that this process may use, and the driver's error if it has none."""
    try:
        driver = ctypes.CDLL("libcuda.so")
    except OSError as error:
        return {"devices": [], "error": str(error)}
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        reason = (text.value or b"unknown").decode(errors="replace")
        return {"devices": [], "error": f"CUDA error {status}: {reason}"}
    return {"devices": [_device(driver, index) for index in range(count.value)], "error": ""}


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
