"""``synkhronos doctor``: examine software, GPUs, the machine, and what several hosts need.

Python code that may hang or crash runs in processes of its own, within limits of time.
``python -m synk_theano_compat`` reports on Theano and on CUDA's libraries.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import sysconfig
import tempfile
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Iterator

from ._probe import Answer, ask, ask_python, output_of
from ._report import GOOD, MISSING, WARNING, DoctorReport, Item, checked
from ._terminal import in_units

OF_THEANO = sys.version_info < (3, 12)
"""Whether functions are Theano's here; from Python 3.12 on they are PyTensor's."""

COMPILE_TIMEOUT_S = 300.0  # Numba compiles the first function for tens of seconds
VERSION_TIMEOUT_S = 20.0


def examine() -> DoctorReport:
    """Examine everything and return the report. Raises nothing, whatever is broken."""
    compat: Answer = {}
    cuda: Answer = {}
    if OF_THEANO:
        compat = ask_python(["-m", "synk_theano_compat", "--json", "--activate"], COMPILE_TIMEOUT_S)
        cuda = ask_python(["-m", "synk_theano_compat", "--cuda"])
        found = glob("/dev/nvidia[0-9]*") if "problem" in cuda else cuda.get("hardware")
        cuda = cuda if found or cuda.get("devices") else {}
    report = DoctorReport(flags=compat.get("flags") or {})
    for name, found in (
        ("Software", examine_software(compat)),
        ("GPUs", examine_gpus(cuda)),
        ("Machine", examine_machine(bool(cuda))),
        ("Several hosts", examine_mpi()),
    ):
        items = report.sections[name] = []
        try:
            items.extend(found)
        except Exception as error:  # noqa: BLE001 - the rest is still worth reporting
            problem = f"could not be examined: {type(error).__name__}: {error}"
            items.append(Item(name, MISSING, problem))
    return report


# 0.2.dev1, which is on no package index.
_NEWER_LASAGNE = "pip install https://github.com/Lasagne/Lasagne/archive/master.zip"
_LASAGNE = f"""
import lasagne.layers
if m.__version__ == "0.1":
    found += "; it has no batch_norm, no only_return_final; most code wants 0.2.dev1: "
    found += {_NEWER_LASAGNE!r}
"""
_NUMPY_FITS = """
if not {} <= [int(part) for part in m.__version__.split(".")[:2]] < {}:
    raise SystemExit(m.__version__ + "; {}")
"""
_PYTENSOR = """
import numpy as np, pytensor.tensor as T
x = T.matrix("x")
assert m.function([x], x.sum())(np.ones((2, 2))) == 4
"""
# Times a matrix product by Theano that takes some 10 ms on one modern core.
_GEMM = """
import timeit
import synk_theano
import numpy as np, theano, theano.tensor as T, threadpoolctl
x, y = T.fmatrices("x", "y")
f = theano.function([x, y], T.dot(x, y))
a = np.ones((768, 768), "float32")
right = bool((f(a, a) == 768).all())
times = timeit.repeat(lambda: f(a, a), number=1, repeat=5)
kernels = [str(pool.get("architecture")) for pool in threadpoolctl.threadpool_info()]
answer(seconds=sorted(times)[2], right=right, kernels=kernels)
"""
_GEMM_FLOP = 2 * 768**3
_SLOW_GFLOPS = 3.0
_OLD_KERNELS = {"Katmai", "Northwood", "Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"}
"""The kernels that OpenBLAS falls back to on an Intel processor newer than itself."""


def examine_software(compat: Answer) -> Iterator[Item]:
    """Yield the items about software. `compat` is what ``synk_theano_compat --json`` prints."""
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    problem = "" if (3, 9) <= sys.version_info[:2] <= (3, 14) else found
    cure = "an environment of Python 3.9 to 3.11, for Theano, or 3.12 to 3.14, for PyTensor"
    yield checked("Python", found, problem, cure)
    adapter = "synk-theano" if OF_THEANO else "synk-pytensor"
    packages = ("synkhronos", adapter, "synk-core", "synk-shm", "synk-comm")
    ours = {package: _version(package) for package in packages}
    lacking = " ".join(package for package in packages if not ours[package])
    found = ", ".join(f"{package} {found}" for package, found in ours.items())
    problem = f"not installed: {lacking}" if lacking else ""
    yield checked("Synkhronos", found, problem, f"pip install {lacking}")
    names = sorted(name for name in os.environ if name.startswith("SYNKHRONOS_"))
    if settings := ", ".join(f"{name}={os.environ[name]}" for name in names):
        yield Item("settings", GOOD, settings)
    if OF_THEANO:
        fits = _NUMPY_FITS.format([1, 23], [1, 27], "Theano needs 1.23 to 1.26")
        yield _module("NumPy", "numpy", "pip install 'numpy>=1.23,<1.27'", fits)
        yield from _theano_and_its_tools(compat)
    else:
        fits = _NUMPY_FITS.format([2], [99], "PyTensor needs 2")
        yield _module("NumPy", "numpy", "pip install 'numpy>=2'", fits)
        yield _module("PyTensor", "pytensor", "pip install 'pytensor>=3.3,<3.4'", _PYTENSOR)
        found = "not looked for: it needs Theano, on Python 3.9 to 3.11; "
        yield Item("Lasagne", GOOD, f"{found}its extra installs nothing here")
    yield _module("pyzmq", "zmq", "pip install pyzmq")
    yield _module("posix_ipc", "posix_ipc", "pip install posix_ipc")
    makes_one = "assert m.ones((1 << 18,)).sum() == 1 << 18"
    yield _module("shared arrays", "synk_shm", "python -m pip check", makes_one)


def _version(package: str) -> str:
    """Return the version of an installed package, where else it is, or ""."""
    try:
        return version(package)
    except PackageNotFoundError:
        is_there = find_spec(package.replace("-", "_")) is not None
        return "(a folder on PYTHONPATH)" if is_there else ""


def _module(name: str, module: str, cure: str, check: str = "", state: str = MISSING) -> Item:
    """Import a module as ``m`` and run the check, which may extend ``found``."""
    code = f"import {module} as m\n"
    code += "found = f\"{getattr(m, '__version__', None) or m.VERSION}, {m.__file__}\"\n"
    answer = ask(f"{code}{check}\nanswer(found=found)", COMPILE_TIMEOUT_S)
    return checked(name, str(answer.get("found")), answer.get("problem", ""), cure, state)


def _theano_and_its_tools(compat: Answer) -> Iterator[Item]:
    theano = _theano(compat)
    yield theano
    compiler = str(compat.get("compiler") or shutil.which("g++") or "")
    problem = "" if compiler else "no g++ on PATH"
    yield checked("C++ compiler", compiler, problem, "apt install g++ (yum: gcc-c++)")
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    problem = "" if os.path.isfile(header) else f"no {header}"
    yield checked("Python's headers", header, problem, "apt install python3-dev (python3-devel)")
    if theano.state == MISSING:
        yield Item("Lasagne", WARNING, "not examined: it needs Theano")
        return
    yield _blas(compat, ask(_GEMM, COMPILE_TIMEOUT_S))
    if _version("lasagne"):
        yield _module("Lasagne", "synk_theano, lasagne", _NEWER_LASAGNE, _LASAGNE, WARNING)
    else:
        found = "not installed; only networks built with it need it"
        yield Item("Lasagne", WARNING, found, _NEWER_LASAGNE)


def _theano(compat: Answer) -> Item:
    found = (compat.get("versions") or {}).get("Theano") or ""
    problem = str(compat.get("problem") or compat.get("error") or "")
    cure = "python -m synk_theano_compat"
    if not found and not problem:
        return Item("Theano", MISSING, "not installed", "pip install Theano==1.0.5")
    if compat.get("switched_off"):
        cure = "unset SYNK_THEANO_COMPAT"
    elif "compiledir" in problem:
        folder = os.path.join(tempfile.gettempdir(), f"theano-{os.getuid()}")
        others = "$THEANO_FLAGS," if os.environ.get("THEANO_FLAGS") else ""
        cure = f"export THEANO_FLAGS={others}base_compiledir={folder}"
    elif "synk_theano_compat" in problem:
        cure = "pip install synk-theano"
    elif "problem" not in compat and compat.get("pth") is None:
        cure += " --install"
    if problem:
        return Item("Theano", MISSING, f"{found}: {problem}" if found else problem, cure)
    found = f"{found}, {compat.get('compiledir')}"
    late = f"{found}; `import theano` works only after `import synkhronos`"
    return checked("Theano", found, "" if compat.get("active") else late, cure, WARNING)


def _blas(compat: Answer, gemm: Answer) -> Item:
    found, state = str((compat.get("blas") or {}).get("origin")), MISSING
    if "problem" in gemm:
        problem = f"{found}; a product failed: {gemm['problem']}"
        cure = f"theano-cache purge, if modules in {compat.get('compiledir')} are damaged"
    elif not gemm["right"]:
        problem, cure = f"{found}: wrong numbers", "name another BLAS in blas.ldflags"
        cure += " of THEANO_FLAGS"
    else:
        speed, state = _GEMM_FLOP / gemm["seconds"] / 1e9, WARNING
        found += f"; 768 x 768 float32: {gemm['seconds'] * 1e3:.1f} ms, {speed:.0f} GFLOP/s"
        problem = found if speed < _SLOW_GFLOPS else ""
        cure = "apt install libopenblas-dev, or pip install scipy"
        features = Path("/proc/cpuinfo").read_text(errors="replace").split()
        if "avx2" in features and (old := _OLD_KERNELS.intersection(gemm.get("kernels", ()))):
            newest = "SkylakeX" if "avx512f" in features else "Haswell"
            problem = f"{found}, with kernels for {min(old)}: OpenBLAS does not know this processor"
            cure = f"export OPENBLAS_CORETYPE={newest}"
    return checked("BLAS", found, problem, cure, state)


_APT = "apt install python3-pygpu libgpuarray-dev (pygpu is on no Python index; it needs mako)"
_PYGPU = """
api = list(m.gpuarray.api_version())
if api[:1] != [2]:
    raise SystemExit(f"{m.__version__}, libgpuarray's interface {api}; Theano needs interface 2")
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
if not problem:
    try:
        image = theano.shared(np.ones((2, 3, 8, 8), "float32"))
        filters = theano.shared(np.ones((4, 3, 3, 3), "float32"))
        result = theano.function([], T.nnet.conv2d(image, filters))()
        assert np.allclose(np.asarray(result), 27, rtol=1e-3), result
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
answer(cudnn_problem=problem)
"""


def examine_gpus(cuda: Answer) -> Iterator[Item]:
    """Yield the items about GPUs. `cuda` is what ``synk_theano_compat --cuda`` prints, if any."""
    if not OF_THEANO:
        found = "not looked for: PyTensor has no back end for them, and functions run on the cores"
        yield Item("GPUs", GOOD, found)
    elif not cuda:
        yield Item("GPUs", GOOD, "none: functions run on the cores, and need nothing for GPUs")
    elif "problem" in cuda:
        yield Item("CUDA", MISSING, cuda["problem"], "timeout 20 nvidia-smi")
    else:
        yield from _cuda_and_its_libraries(cuda)


def _cuda_and_its_libraries(cuda: Answer) -> Iterator[Item]:
    major, minor = cuda["driver"]
    extra = f"pip install 'synkhronos[gpu-cu{13 if major >= 13 else 12}]'"
    prepared, missing, devices = cuda["prepared"], cuda["missing"], cuda["devices"]
    found = f"for CUDA {major}.{minor}; libcuda.so: {prepared.get('cuda')}"
    problem = f"there is a GPU ({', '.join(cuda['hardware'])}), but no libcuda.so.1"
    cure = "apt install nvidia-driver (in a container: docker run --gpus all)"
    needed = [checked("driver", found, "" if major else problem, cure)]
    found = "; ".join(
        f"cuda{index}: {device['name']}, {in_units(device['memory'])}, "
        f"compute capability {'.'.join(map(str, device['capability']))}"
        for index, device in enumerate(devices)
    )
    problem = "" if devices else cuda["error"] or "none usable"
    cure = "nvidia-smi; CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all"
    needed += [checked("GPUs", found, problem, cure)]
    # This driver refuses the code of a newer nvrtc.
    suffix = "" if major >= 13 else "-cu12"
    nvrtc = f"{extra} 'nvidia-cuda-nvrtc{suffix}=={major}.{minor}.*'" if major else extra
    for name, cure in (("nvrtc", nvrtc), ("cublas", extra)):
        needed += [checked(f"lib{name}", str(prepared.get(name)), missing.get(name, ""), cure)]
    needed += [_module("pygpu", "pygpu", _APT, _PYGPU)]
    yield from needed

    device: Answer = {}
    if all(item.state == GOOD for item in needed):
        device = ask(_DEVICE, COMPILE_TIMEOUT_S)
        found = "kernels and matrix products give right results"
        cure = "THEANO_FLAGS=device=cuda0 python -c 'import synk_theano, theano' shows more"
        yield checked("Theano on cuda0", found, device.get("problem", ""), cure)
    yield _cudnn(cuda, device.get("cudnn_problem", ""), extra)
    nccl4py = _version("nccl4py")
    for name, found, problem, cure in (
        ("NCCL", str(prepared.get("nccl")), missing.get("nccl", ""), extra),
        ("nccl4py", nccl4py, "" if nccl4py else "not installed", "pip install 'synkhronos[gpu]'"),
    ):
        if problem and len(devices) < 2:
            yield Item(name, GOOD, f"{problem}; a single GPU does not need it")
        else:
            text = problem and f"{problem}; collectives go through host memory"
            yield checked(name, found, text, cure, WARNING)


def _cudnn(cuda: Answer, problem: str, cure: str) -> Item:
    found = cuda["cudnn"]
    if found is None:
        libraries = [one["path"] for one in cuda["libraries"].get("cudnn", [])]
        text = f"{libraries[0]}, but no cudnn.h of its version" if libraries else "not found"
        return Item("cuDNN", WARNING, f"{text}; convolutions are slower without it", cure)
    text = f"{found['version']}: {found['library']}, {found['header']}"
    if found["cuda_headers"] is None:
        problem = "but no cuda_runtime.h with crt/"
    if found["version"] >= 9000:
        text += "; without Theano's recurrent ops (RNNBlock), which need cuDNN 8 or older"
    return checked("cuDNN", text, problem and f"{text}; {problem}", cure, WARNING)


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - nothing is written there
_LEAST_SHARED = 1 << 30
_LEAST_LOCKED = 64 << 20
_CORES = "from synk_comm import processes\nanswer(cores=processes.available_cores())"
_SEGMENTS = """
import synk_shm
answer(stale=[one.name for one in synk_shm.list() if not one.alive and not one.mine])
"""


def examine_machine(has_gpu: bool) -> Iterator[Item]:
    """Yield the items about the memory, limits and cores that this process may use."""
    yield _shared_memory()
    answer = ask(_SEGMENTS)
    problem, cure = "", ""
    if "problem" in answer:
        problem = f"could not be listed: {answer['problem']}"
    elif stale := answer["stale"]:
        problem, cure = f"{len(stale)}, of dead processes: {stale[0]}", "synkhronos clean"
    yield checked("stale segments", "none", problem, cure, WARNING)
    limit, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = limit == resource.RLIM_INFINITY
    found = "no limit" if unlimited else f"at most {in_units(limit)}"
    problem = found if has_gpu and not unlimited and limit < _LEAST_LOCKED else ""
    cure = "NCCL may need more: ulimit -l unlimited, or docker run --ulimit memlock=-1"
    yield checked("locked memory", found, problem, cure, WARNING)
    allowed = len(os.sched_getaffinity(0))
    usable = ask(_CORES).get("cores", allowed)
    limited = ", by the limit of this container or service" if usable < allowed else ""
    found = f"{usable} of {os.cpu_count()}{limited}"
    cure = "docker run --cpus=4 (or more: each process needs a core)"
    yield checked("cores", found, found if usable < min(allowed, 2) else "", cure, WARNING)


def _shared_memory() -> Item:
    name = "shared memory"
    try:
        space = shutil.disk_usage(_SHARED_MEMORY)
    except OSError as error:
        cure = f"mkdir -p {_SHARED_MEMORY} && mount -t tmpfs -o size=8g tmpfs {_SHARED_MEMORY}"
        return Item(name, MISSING, str(error), cure)
    found = f"{_SHARED_MEMORY}: {in_units(space.free)} free of {in_units(space.total)}"
    if not os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        cure = f"chmod 1777 {_SHARED_MEMORY} (as root)"
        return Item(name, MISSING, f"{found}, and not writable", cure)
    little = f"{found}, which is little for NCCL; data that do not fit are kept elsewhere"
    cure = f"mount -o remount,size=8g {_SHARED_MEMORY} (as root), or docker run --shm-size=8g"
    return checked(name, found, little if space.free < _LEAST_SHARED else "", cure, WARNING)


OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""The families of MPI: a launcher of one starts no ranks of the other."""
_MARKS = {
    OPEN_MPI: ("Open MPI", "OpenRTE", "PRRTE", "prterun"),
    MPICH: ("MPICH", "HYDRA", "Intel", "MVAPICH", "PALS", "CRAY"),
}
_NETMOD = "MPIR_CVAR_CH4_NETMOD"
_LOAD = "load the MPI of this cluster (module load ...), or pip install mpich"
_LAUNCHED = """
from synk_core import mpi
launch = mpi.launched()
answer(**(launch._asdict() if launch else {}))
"""
_LIBRARY = "from synk_core import mpi\nanswer(**mpi.library())"


def examine_mpi() -> Iterator[Item]:
    """Yield the items about several hosts; a single one where nothing is there for them."""
    launch = ask(_LAUNCHED)
    wanted = bool(launch.get("size")) or os.environ.get("SYNKHRONOS_BACKEND") == "mpi"
    library = ask(_LIBRARY) if find_spec("mpi4py") else {}
    if "problem" in library:
        state, found = MISSING if wanted else WARNING, f"cannot be used: {library['problem']}"
        yield Item("mpi4py", state, found, _LOAD)
    elif library:
        yield Item("mpi4py", GOOD, "{mpi4py}, with {name}, {file}".format_map(library))
    else:
        found = "not installed; only programs on several hosts need it"
        yield checked("mpi4py", found, found if wanted else "", "pip install 'synkhronos[mpi]'")
        if not wanted:
            return
    found, problem = "none has started this process", ""
    if launch.get("size"):
        found = "{name} has started {size} processes; this is rank {rank}".format_map(launch)
    elif "problem" in launch:
        problem = f"could not be examined: {launch['problem']}"
    yield checked("launcher", found, problem, "", WARNING)
    if "name" in library:
        srun, mpiexec = shutil.which("srun"), shutil.which("mpiexec")
        if mpiexec or not srun:
            yield _mpiexec(mpiexec, library["name"])
        if srun:
            yield _srun(srun, library["name"], library["file"])


def _mpiexec(path: str | None, library: str) -> Item:
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    own, cure = family(library), f"start with the mpiexec of {library}"
    if os.access(beside, os.X_OK) and family_of(beside)[0] == own:
        cure = f"export PATH={os.path.dirname(beside)}:$PATH"
    if path is None:
        return Item("mpiexec", WARNING, "none on PATH", cure)
    found, printed = family_of(path)
    if not found:
        return Item("mpiexec", WARNING, f"{path}: {printed}", cure)
    misfit = f"{path} is of {found}, but mpi4py uses {library}"
    misfit = f"{misfit}: its ranks would not find each other" if own not in ("", found) else ""
    return checked("mpiexec", f"{path}, of {found} ({printed})", misfit, cure, WARNING)


def _srun(path: str, library: str, file: str) -> Item:
    text, errors, problem = output_of([path, "--mpi=list"], VERSION_TIMEOUT_S)
    if problem:
        return Item("srun", WARNING, f"{path} --mpi=list: {problem}")
    words = {word.strip(",:") for word in (text + errors).split()}
    known = sorted(word for word in words if word in ("pmi2", "cray_shasta") or "pmix" in word)
    found, cure = f"{path}, --mpi={', '.join(known) or 'none'}", "start with mpiexec in a job"
    suits = any("pmix" in word or family(library) != OPEN_MPI for word in known)
    problem = "" if suits else f"{found}: nothing for {library}"
    if family(library) == MPICH and file.startswith(sys.prefix) and _NETMOD not in os.environ:
        # Its addresses by UCX may be longer than a line that Slurm reads: ranks hang.
        problem = f"{found}; Slurm may not read the addresses of pip's MPICH"
        cure = f"export {_NETMOD}=ofi"
    return checked("srun", found, problem, cure, WARNING)


def family(text: str) -> str:
    """Return which MPI is meant: OPEN_MPI, MPICH for all that take its programs, or ""."""
    return next((name for name, marks in _MARKS.items() if any(m in text for m in marks)), "")


def family_of(mpiexec: str) -> tuple[str, str]:
    """Return the family of an mpiexec, and the version that it prints, or why there is none."""
    text, errors, problem = output_of([mpiexec, "--version"], VERSION_TIMEOUT_S)
    if problem:
        return "", f"--version: {problem}"
    lines = [" ".join(line.split()) for line in (text + errors).splitlines() if line.strip()]
    numbered = [line for line in lines if any(letter.isdigit() for letter in line)]
    return family(text + errors), (numbered or lines or ["prints nothing"])[0]
