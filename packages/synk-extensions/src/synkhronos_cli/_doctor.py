"""``synkhronos doctor``: examine software, GPUs, the machine, and what several hosts need.

Python code that may hang or crash runs in processes of its own, within limits of time. What Theano
and CUDA's libraries are like here is reported by ``python -m synk_theano_compat``.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

from ._probe import Answer, ask, ask_module, output_of
from ._report import GOOD, MISSING, WARNING, DoctorReport, Item, needed
from ._terminal import in_units

OF_THEANO = sys.version_info < (3, 12)
"""Whether functions are Theano's here; from Python 3.12 on they are PyTensor's."""

IMPORT_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 300.0  # Numba compiles the first function for tens of seconds
VERSION_TIMEOUT_S = 20.0


def examine() -> DoctorReport:
    """Examine everything and return the report. Raises nothing, whatever is broken."""
    compat: Answer = {}
    cuda: Answer = {}
    if OF_THEANO:
        compat = ask_module(["synk_theano_compat", "--json", "--activate"], COMPILE_TIMEOUT_S)
        cuda = ask_module(["synk_theano_compat", "--cuda"], IMPORT_TIMEOUT_S)
    has_gpu = bool(cuda.get("hardware") or cuda.get("devices"))
    sections: dict[str, Callable[[], list[Item]]] = {
        "Software": lambda: examine_software(compat),
        "GPUs": lambda: examine_gpus(cuda, has_gpu),
        "Machine": lambda: examine_machine(has_gpu),
        "Several hosts": examine_mpi,
    }
    report = DoctorReport()
    for name, section in sections.items():
        try:
            report.sections[name] = section()
        except Exception as error:  # noqa: BLE001 - the other sections are still worth reporting
            found = f"could not be examined: {type(error).__name__}: {error}"
            report.sections[name] = [Item(name, MISSING, found)]
    flags = compat.get("flags")
    for name, flag in flags.items() if isinstance(flags, dict) else ():
        if isinstance(flag, dict):
            report.flags[name] = {key: str(flag.get(key)) for key in ("value", "set_by")}
    return report


# ---- software ------------------------------------------------------------------------------------

_ADAPTER = "synk-theano" if OF_THEANO else "synk-pytensor"
_OURS = ("synkhronos", _ADAPTER, "synk-core", "synk-shm", "synk-comm")
NEWER_LASAGNE = "https://github.com/Lasagne/Lasagne/archive/master.zip"
"""0.2.dev1, which is on no package index."""

_NUMPY_FITS = """
numbers = [int(part) for part in m.__version__.split(".")[:2]]
if not {}:
    raise SystemExit(f"{{m.__version__}}; {}")
"""
_PYTENSOR = """
import numpy as np, pytensor.tensor as T
x = T.matrix("x")
assert m.function([x], x.sum())(np.ones((2, 2))) == 4
"""
# Times a matrix product by Theano that takes some 10 ms on one modern core.
_GEMM = """
import time
import synk_theano
import numpy as np, theano, theano.tensor as T, threadpoolctl
x, y = T.fmatrices("x", "y")
f = theano.function([x, y], T.dot(x, y))
a = np.ones((768, 768), "float32")
f(a, a)
times = []
for _ in range(5):
    start = time.perf_counter()
    f(a, a)
    times.append(time.perf_counter() - start)
kernels = [str(pool.get("architecture")) for pool in threadpoolctl.threadpool_info()]
answer(seconds=sorted(times)[2], right=bool((f(a, a) == 768).all()), kernels=kernels)
"""
_GEMM_FLOP = 2 * 768**3
_SLOW_GFLOPS = 3.0
_OLD_KERNELS = {"Katmai", "Northwood", "Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"}
"""What OpenBLAS falls back to on an Intel processor that is newer than itself."""


def examine_software(compat: Answer) -> list[Item]:
    """Return the items about software.

    Args:
        compat: The answer of ``python -m synk_theano_compat --json --activate``; empty without
            Theano.
    """
    items = [_python(), _packages()]
    if OF_THEANO:
        fits = _NUMPY_FITS.format("[1, 23] <= numbers < [1, 27]", "Theano needs 1.23 to 1.26")
        items += [_module("NumPy", "numpy", "pip install 'numpy>=1.23,<1.27'", fits)]
        items += _theano_and_its_tools(compat)
    else:
        fits = _NUMPY_FITS.format("numbers >= [2]", "PyTensor needs 2")
        items += [_module("NumPy", "numpy", "pip install 'numpy>=2'", fits)]
        items += [_module("PyTensor", "pytensor", "pip install 'pytensor>=3.3,<3.4'", _PYTENSOR)]
        found = "not looked for: it needs Theano, on Python 3.9 to 3.11; "
        items += [Item("Lasagne", GOOD, f"{found}its extra installs nothing here")]
    makes_one = "assert m.ones((1 << 18,)).sum() == 1 << 18"
    return [
        *items,
        _module("pyzmq", "zmq", "pip install pyzmq"),
        _module("posix_ipc", "posix_ipc", "pip install posix_ipc"),
        _module("shared arrays", "synk_shm", "python -m pip check", makes_one),
    ]


def _ask_module(module: str, check: str = "", before: str = "") -> Answer:
    """Run `before`, import a module as ``m``, run `check`; return its version and path."""
    code = f"{before}\nimport {module} as m\n{check}\n"
    code += "answer(version=getattr(m, '__version__', None) or m.VERSION, path=m.__file__)"
    return ask(code, COMPILE_TIMEOUT_S)


def _module(name: str, module: str, cure: str, check: str = "") -> Item:
    answer = _ask_module(module, check)
    found = f"{answer.get('version')}, {answer.get('path')}"
    return needed(name, answer.get("problem", ""), cure, found)


def _python() -> Item:
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    cure = "an environment of Python 3.9 to 3.11, for Theano, or 3.12 to 3.14, for PyTensor"
    fits = (3, 9) <= sys.version_info[:2] <= (3, 14)
    return needed("Python", "" if fits else found, cure, found)


def _packages() -> Item:
    found, missing = [], []
    for package in _OURS:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            if find_spec(package.replace("-", "_")) is None:
                missing.append(package)
            else:
                found.append(f"{package} (a folder on PYTHONPATH)")
    problem = f"not installed: {', '.join(missing)}" if missing else ""
    return needed("Synkhronos", problem, f"pip install {' '.join(missing)}", ", ".join(found))


def _theano_and_its_tools(compat: Answer) -> list[Item]:
    compiler = compat.get("compiler") or shutil.which("g++")
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    no_compiler = "" if compiler else "no g++ on PATH"
    no_header = "" if os.path.isfile(header) else f"no {header}"
    theano = _theano(compat)
    items = [
        theano,
        needed("C++ compiler", no_compiler, "apt install g++ (yum: gcc-c++)", str(compiler)),
        needed("Python's headers", no_header, "apt install python3-dev (python3-devel)", header),
    ]
    if theano.state == MISSING:
        return [*items, Item("Lasagne", WARNING, "not examined: it needs Theano")]
    lasagne = _ask_module("lasagne", "import lasagne.layers", before="import synk_theano")
    return [*items, _blas(compat, ask(_GEMM, COMPILE_TIMEOUT_S)), _lasagne(compat, lasagne)]


def _theano(compat: Answer) -> Item:
    found = dict(compat.get("versions") or {}).get("Theano") or ""
    problem = str(compat.get("problem") or compat.get("error") or "")
    if not found and not problem:
        return Item("Theano", MISSING, "not installed", "pip install Theano==1.0.5")
    cure = "python -m synk_theano_compat"
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
    if compat.get("active"):
        return Item("Theano", GOOD, found)
    found += "; `import theano` works only after `import synkhronos`"
    return Item("Theano", WARNING, found, cure)


def _blas(compat: Answer, gemm: Answer) -> Item:
    name, found = "BLAS", str((compat.get("blas") or {}).get("origin"))
    if "problem" in gemm:
        cure = f"theano-cache purge, if modules in {compat.get('compiledir')} are damaged"
        return Item(name, MISSING, f"{found}; a product failed: {gemm['problem']}", cure)
    if not gemm["right"]:
        cure = "name another BLAS in blas.ldflags of THEANO_FLAGS"
        return Item(name, MISSING, f"{found}: wrong numbers", cure)
    speed = _GEMM_FLOP / gemm["seconds"] / 1e9
    found += f"; 768 x 768 float32: {gemm['seconds'] * 1e3:.1f} ms, {speed:.0f} GFLOP/s"
    features = Path("/proc/cpuinfo").read_text(errors="replace").split()
    if "avx2" in features and (old := _OLD_KERNELS.intersection(gemm.get("kernels", ()))):
        newest = "SkylakeX" if "avx512f" in features else "Haswell"
        found += f", with kernels for {min(old)}: OpenBLAS does not know this processor"
        return Item(name, WARNING, found, f"export OPENBLAS_CORETYPE={newest}")
    if speed < _SLOW_GFLOPS:
        return Item(name, WARNING, found, "apt install libopenblas-dev, or pip install scipy")
    return Item(name, GOOD, found)


def _lasagne(compat: Answer, lasagne: Answer) -> Item:
    # What is imported may be another than what is installed: a folder on PYTHONPATH.
    found = lasagne.get("version") or dict(compat.get("versions") or {}).get("Lasagne")
    cure = f"pip install {NEWER_LASAGNE}"
    if not found:
        return Item("Lasagne", WARNING, "not installed; only networks built with it need it", cure)
    if "problem" in lasagne:
        return Item("Lasagne", WARNING, f"{found}: {lasagne['problem']}", cure)
    lacks = f"; it has no batch_norm, no only_return_final; most code wants 0.2.dev1: {cure}"
    more = lacks if found == "0.1" else ""
    return Item("Lasagne", GOOD, f"{found}, {lasagne.get('path')}{more}")


# ---- GPUs ----------------------------------------------------------------------------------------

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
    if "problem" in cuda:
        return [Item("CUDA", MISSING, cuda["problem"], "timeout 20 nvidia-smi")]
    major, minor = cuda.get("driver") or (0, 0)
    extra = f"pip install 'synkhronos[gpu-cu{13 if major >= 13 else 12}]'"
    prepared, missing = dict(cuda.get("prepared") or {}), dict(cuda.get("missing") or {})
    devices = cuda.get("devices") or []

    hardware = ", ".join(cuda.get("hardware") or [])
    no_driver = "" if major else f"there is a GPU ({hardware}), but no libcuda.so.1"
    no_device = "" if devices else str(cuda.get("error") or "none usable")
    # This driver refuses the code of a newer nvrtc.
    suffix = "" if major >= 13 else "-cu12"
    nvrtc = f"{extra} 'nvidia-cuda-nvrtc{suffix}=={major}.{minor}.*'" if major else extra
    items = [
        needed(
            "driver",
            no_driver,
            "apt install nvidia-driver (in a container: docker run --gpus all)",
            f"for CUDA {major}.{minor}; libcuda.so: {prepared.get('cuda')}",
        ),
        needed(
            "GPUs",
            no_device,
            "nvidia-smi; CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all",
            "; ".join(map(_described, range(len(devices)), devices)),
        ),
        needed("libnvrtc", missing.get("nvrtc", ""), nvrtc, str(prepared.get("nvrtc"))),
        needed("libcublas", missing.get("cublas", ""), extra, str(prepared.get("cublas"))),
        _module("pygpu", "pygpu", _APT, _PYGPU),
    ]
    device: Answer = {}
    if not any(item.state == MISSING for item in items):
        device = ask(_DEVICE, COMPILE_TIMEOUT_S)
        found = "kernels and matrix products give right results"
        cure = "THEANO_FLAGS=device=cuda0 python -c 'import synk_theano, theano' shows more"
        items.append(needed("Theano on cuda0", device.get("problem", ""), cure, found))
    items.append(_cudnn(cuda, device, extra))
    found, no_nccl = str(prepared.get("nccl")), missing.get("nccl", "")
    items.append(_of_several("NCCL", no_nccl, extra, found, len(devices)))
    try:
        found, no_nccl4py = version("nccl4py"), ""
    except PackageNotFoundError:
        found, no_nccl4py = "", "not installed"
    cure = "pip install 'synkhronos[gpu]'"
    items.append(_of_several("nccl4py", no_nccl4py, cure, found, len(devices)))
    return items


def _described(index: int, device: dict[str, Any]) -> str:
    capability = ".".join(map(str, device["capability"]))
    memory = in_units(device["memory"])
    return f"cuda{index}: {device['name']}, {memory}, compute capability {capability}"


def _cudnn(cuda: Answer, device: Answer, cure: str) -> Item:
    name, found = "cuDNN", cuda.get("cudnn")
    if found is None:
        libraries = [one["path"] for one in (cuda.get("libraries") or {}).get("cudnn", [])]
        text = f"{libraries[0]}, but no cudnn.h of its version" if libraries else "not found"
        return Item(name, WARNING, f"{text}; convolutions are slower without it", cure)
    text = f"{found['version']}: {found['library']}, {found['header']}"
    problem = device.get("cudnn_problem")
    if found["cuda_headers"] is None:
        problem = "but no cuda_runtime.h with crt/"
    if problem:
        return Item(name, WARNING, f"{text}; {problem}", cure)
    if found["version"] >= 9000:
        text += "; without Theano's recurrent ops (RNNBlock), which need cuDNN 8 or older"
    return Item(name, GOOD, text)


def _of_several(name: str, problem: str, cure: str, found: str, devices: int) -> Item:
    """Return the item of something that only several GPUs use."""
    if not problem:
        return Item(name, GOOD, found)
    if devices < 2:
        return Item(name, GOOD, f"{problem}; a single GPU does not need it")
    return Item(name, WARNING, f"{problem}; collectives go through host memory", cure)


# ---- the machine ---------------------------------------------------------------------------------

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - nothing is written there
_LEAST_SHARED = 1 << 30
_LEAST_LOCKED = 64 << 20
_LEAST = 1024
"""Open files, and processes with threads, that are enough."""
_NCCL_LOCKS = "NCCL may need more: ulimit -l unlimited, or docker run --ulimit memlock=-1"
_CORES = "from synk_core import _cores\nanswer(cores=_cores.available_cores())"
_SEGMENTS = """
import synk_shm
answer(stale=[one.name for one in synk_shm.list() if not one.alive and not one.mine])
"""


def examine_machine(has_gpu: bool) -> list[Item]:
    """Return the items about the memory, limits and cores that this process may use."""
    locked = _LEAST_LOCKED if has_gpu else 0
    return [
        _shared_memory(),
        _segments(),
        _limited("open files", resource.RLIMIT_NOFILE, _LEAST, "ulimit -n 4096"),
        _limited("locked memory", resource.RLIMIT_MEMLOCK, locked, _NCCL_LOCKS, in_units),
        _limited("processes", resource.RLIMIT_NPROC, _LEAST, "ulimit -u 4096"),
        _cores(),
    ]


def _shared_memory() -> Item:
    name = "shared memory"
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        cure = f"mkdir -p {_SHARED_MEMORY} && mount -t tmpfs -o size=8g tmpfs {_SHARED_MEMORY}"
        return Item(name, MISSING, str(error), cure)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    found = f"{_SHARED_MEMORY}: {in_units(free)} free of {in_units(size)}"
    if not os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
        cure = f"chmod 1777 {_SHARED_MEMORY} (as root)"
        return Item(name, MISSING, f"{found}, and not writable", cure)
    if free < _LEAST_SHARED:
        found += ", which is little for NCCL; data that do not fit are kept elsewhere"
        cure = f"mount -o remount,size=8g {_SHARED_MEMORY} (as root), or docker run --shm-size=8g"
        return Item(name, WARNING, found, cure)
    return Item(name, GOOD, found)


def _segments() -> Item:
    name, answer = "stale segments", ask(_SEGMENTS, IMPORT_TIMEOUT_S)
    if "problem" in answer:
        return Item(name, WARNING, f"could not be listed: {answer['problem']}")
    stale = answer["stale"]
    if not stale:
        return Item(name, GOOD, "none")
    return Item(name, WARNING, f"{len(stale)}, of dead processes: {stale[0]}", "synkhronos clean")


def _limit(kind: int) -> int:
    soft, _hard = resource.getrlimit(kind)
    return soft


def _limited(
    name: str, kind: int, least: int, cure: str, shown: Callable[[float], str] = str
) -> Item:
    number = _limit(kind)
    if number == resource.RLIM_INFINITY:
        return Item(name, GOOD, "no limit")
    found = f"at most {shown(number)}"
    return Item(name, WARNING, found, cure) if number < least else Item(name, GOOD, found)


def _cores() -> Item:
    usable = ask(_CORES, IMPORT_TIMEOUT_S).get("cores", len(os.sched_getaffinity(0)))
    found = f"{usable} of {os.cpu_count()}"
    if usable < len(os.sched_getaffinity(0)):
        found += ", by the limit of this container or service"
        if usable < 2:
            cure = "docker run --cpus=4 (or more: each process needs a core)"
            return Item("cores", WARNING, found, cure)
    return Item("cores", GOOD, found)


# ---- several hosts -------------------------------------------------------------------------------

OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""The families of MPI: a launcher of one starts no ranks of the other."""
_MARKS = {
    OPEN_MPI: ("Open MPI", "OpenRTE", "PRRTE", "prterun"),
    MPICH: ("MPICH", "HYDRA", "Intel", "MVAPICH", "PALS", "CRAY"),
}
_NETMOD = "MPIR_CVAR_CH4_NETMOD"
_INSTALL = "pip install 'synkhronos[mpi]'"
_LOAD = "load the MPI of this cluster (module load ...), or pip install mpich"
_LAUNCHED = """
from synk_core import mpi
launch = mpi.launched()
answer(**(launch._asdict() if launch else {}))
"""
_LIBRARY = "from synk_core import mpi\nanswer(**mpi.library())"


def examine_mpi() -> list[Item]:
    """Return the items about several hosts; a single one where nothing is there for them."""
    launch = ask(_LAUNCHED, IMPORT_TIMEOUT_S)
    wanted = bool(launch.get("size")) or os.environ.get("SYNKHRONOS_BACKEND") == "mpi"
    if find_spec("mpi4py") is None:
        found = "not installed; only programs on several hosts need it"
        items = [Item("mpi4py", MISSING if wanted else GOOD, found, _INSTALL)]
        return [*items, _launcher(launch)] if wanted else items
    library = ask(_LIBRARY, IMPORT_TIMEOUT_S)
    if "problem" in library:
        found = f"cannot be used: {library['problem']}"
        return [Item("mpi4py", MISSING if wanted else WARNING, found, _LOAD), _launcher(launch)]
    name, file = str(library.get("name")), str(library.get("file"))
    found = f"{library.get('mpi4py')}, with {name}, {file}"
    items = [Item("mpi4py", GOOD, found), _launcher(launch)]
    srun, mpiexec = shutil.which("srun"), shutil.which("mpiexec")
    if mpiexec or not srun:
        items.append(_mpiexec(mpiexec, name))
    if srun:
        items.append(_srun(srun, name, file))
    return items


def _launcher(launch: Answer) -> Item:
    if "problem" in launch:
        return Item("launcher", WARNING, f"could not be examined: {launch['problem']}")
    name, size, rank = (launch.get(key) for key in ("name", "size", "rank"))
    if not size:
        return Item("launcher", GOOD, "none has started this process")
    return Item("launcher", GOOD, f"{name} has started {size} processes; this is rank {rank}")


def _mpiexec(path: str | None, library: str) -> Item:
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    own = family(library)
    cure = f"start with the mpiexec of {library}"
    if os.access(beside, os.X_OK) and family_of(beside)[0] == own:
        cure = f"export PATH={os.path.dirname(beside)}:$PATH"
    if path is None:
        return Item("mpiexec", WARNING, "none on PATH", cure)
    found, printed = family_of(path)
    if not found:
        return Item("mpiexec", WARNING, f"{path}: {printed}", cure)
    if own and found != own:
        fit = (
            f"{path} is of {found}, but mpi4py uses {library}: its ranks would not find each other"
        )
        return Item("mpiexec", WARNING, fit, cure)
    return Item("mpiexec", GOOD, f"{path}, of {found} ({printed})")


def _srun(path: str, library: str, file: str) -> Item:
    text, problem = output_of([path, "--mpi=list"], VERSION_TIMEOUT_S)
    if problem:
        return Item("srun", WARNING, f"{path} --mpi=list: {problem}")
    words = [word.strip(",:") for word in text.split()]
    known = {word for word in words if word in ("none", "pmi2", "cray_shasta") or "pmix" in word}
    offered = f"{path}, --mpi={', '.join(sorted(known)) or 'nothing'}"
    suits = {word for word in known - {"none"} if "pmix" in word or family(library) != OPEN_MPI}
    if family(library) == MPICH and file.startswith(sys.prefix) and _NETMOD not in os.environ:
        # Its addresses by UCX may be longer than a line that Slurm reads: ranks hang.
        found = f"{offered}; Slurm may not read the addresses of pip's MPICH"
        return Item("srun", WARNING, found, f"export {_NETMOD}=ofi")
    if suits:
        return Item("srun", GOOD, offered)
    return Item("srun", WARNING, f"{offered}: nothing for {library}", "start with mpiexec in a job")


def family(text: str) -> str:
    """Return which MPI is meant: OPEN_MPI, MPICH for all that take its programs, or ""."""
    return next((name for name, marks in _MARKS.items() if any(m in text for m in marks)), "")


def family_of(mpiexec: str) -> tuple[str, str]:
    """Return the family of an mpiexec, and the version that it prints, or why there is none."""
    text, problem = output_of([mpiexec, "--version"], VERSION_TIMEOUT_S)
    if problem:
        return "", f"--version: {problem}"
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    numbered = [line for line in lines if any(letter.isdigit() for letter in line)]
    return family(text), (numbered or lines or ["prints nothing"])[0]
