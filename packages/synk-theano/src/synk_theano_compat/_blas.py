"""Find a BLAS that is really there and give it a name under which Theano can link it.

In this order: the OpenBLAS that SciPy's wheels bring along, a BLAS of this Python's prefix (conda),
a BLAS of the system. A library is taken only if a small program that multiplies with it compiles,
links, runs and gets the right numbers. What was found is kept in a folder of its own::

    <cache>/blas-<digest>/
        libopenblas.so                 -> .../scipy.libs/libscipy_openblas-68440149.so
        libscipy_openblas-68440149.so  -> the same, under the name asked for at run time
        names.h                        #define sgemm_ scipy_sgemm_ ... (if names are prefixed)

The digest covers library and compiler (path, size, time), so that the program runs once for each
pair, and never again while both stay. Folders are made aside and renamed: any number of processes
may do so at once. Each use checks that the folder is the user's own, and what its links point to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FORMAT = 1
PROBE_TIMEOUT_S = 60

# Theano splits flags at blanks and commas; quotes and the like would reach the compiler.
_PLAIN_PATH = re.compile(r"[\w./+@~=-]+", re.ASCII)

# SciPy >= 1.14 prefixes every name of its OpenBLAS. Only BLAS and LAPACK's Fortran names, CBLAS and
# the thread settings are mapped, each of them long or odd enough to mean nothing else in C code.
_PREFIXED = re.compile(
    rb"(?<=\0)scipy_([a-z][a-z0-9]{2,10}_|cblas_[a-z0-9_]+|openblas_[a-z_]+|goto_set_num_threads)(?=\0)"
)

_PROBE = r"""
extern "C" {
void sgemm_(char*, char*, const int*, const int*, const int*, const float*, const float*,
            const int*, const float*, const int*, const float*, float*, const int*);
void dgemm_(char*, char*, const int*, const int*, const int*, const double*, const double*,
            const int*, const double*, const int*, const double*, double*, const int*);
void dgemv_(char*, const int*, const int*, const double*, const double*, const int*,
            const double*, const int*, const double*, double*, const int*);
void sger_(const int*, const int*, const float*, const float*, const int*, const float*,
           const int*, float*, const int*);
float sdot_(const int*, const float*, const int*, const float*, const int*);
double ddot_(const int*, const double*, const int*, const double*, const int*);
#ifdef WITH_OPENBLAS
void openblas_set_num_threads(int);
int openblas_get_num_threads(void);
#endif
}
int main() {
    /* each integer is followed by junk: a library with 64-bit integers fails here, not later */
    int two[2] = {2, 77}, one[2] = {1, 77};
    float fa[4] = {1, 2, 3, 4}, fb[4] = {5, 6, 7, 8}, fc[4] = {0, 0, 0, 0}, f1 = 1, f0 = 0;
    double da[4] = {1, 2, 3, 4}, db[4] = {5, 6, 7, 8}, dc[4] = {0, 0, 0, 0}, d1 = 1, d0 = 0;
    char n = 'N';
    sgemm_(&n, &n, two, two, two, &f1, fa, two, fb, two, &f0, fc, two);
    if (fc[0] != 23 || fc[1] != 34 || fc[2] != 31 || fc[3] != 46) return 1;
    dgemm_(&n, &n, two, two, two, &d1, da, two, db, two, &d0, dc, two);
    if (dc[0] != 23 || dc[1] != 34 || dc[2] != 31 || dc[3] != 46) return 2;
    dgemv_(&n, two, two, &d1, da, two, db, one, &d0, dc, one);
    if (dc[0] != 23 || dc[1] != 34) return 3;
    fc[0] = fc[1] = fc[2] = fc[3] = 0;
    sger_(two, two, &f1, fa, one, fb, one, fc, two);
    if (fc[0] != 5 || fc[1] != 10 || fc[2] != 6 || fc[3] != 12) return 4;
    if (sdot_(two, fa, one, fb, one) != 17 || ddot_(two, da, one, db, one) != 17) return 5;
#ifdef WITH_OPENBLAS
    if (openblas_get_num_threads() < 1) return 6;
#endif
    return 0;
}
"""


class Choice(NamedTuple):
    """The BLAS to link: Theano's flag, the library's path and where it comes from."""

    ldflags: str
    library: str
    origin: str


class _Candidate(NamedTuple):
    library: Path
    origin: str


NUMPY = Choice("", "", "NumPy's C API: no BLAS was found that links and computes right")
NO_COMPILER = Choice("", "", "none: without a C++ compiler Theano computes with NumPy")

last: list[Choice] = []
"""The choices made in this process (one, or none if the user has set ``blas.ldflags``)."""


def choose(compiler: str | None) -> Choice:
    """Return the BLAS that Theano shall link with ``compiler`` (a path; None if there is none)."""
    choice = NO_COMPILER if compiler is None else NUMPY
    if compiler is not None and sys.platform == "linux":
        for candidate in _candidates(compiler):
            found = _prepare(candidate, compiler)
            if found is not None:
                choice = found
                break
    last.append(choice)
    return choice


def _candidates(compiler: str) -> Iterator[_Candidate]:
    from importlib.util import find_spec

    spec = find_spec("scipy")
    for folder in (spec and spec.submodule_search_locations) or ():
        bundled = Path(folder).parent / "scipy.libs"
        for library in sorted(bundled.glob("lib*openblas*.so*")):
            yield _Candidate(library, "SciPy's OpenBLAS")
    for name in ("libopenblas.so", "libblas.so"):
        library = Path(sys.prefix) / "lib" / name
        if library.exists():
            yield _Candidate(library, "this Python's prefix")
    for name in ("libopenblas.so", "libblas.so"):
        found = _run([compiler, f"-print-file-name={name}"])
        if found is not None and os.path.isabs(found.strip()) and os.path.exists(found.strip()):
            yield _Candidate(Path(found.strip()), "the system's BLAS")


def _prepare(candidate: _Candidate, compiler: str) -> Choice | None:
    """Return the choice for this library; None if it cannot be used."""
    library = candidate.library
    link = "libopenblas.so" if "openblas" in os.path.realpath(library) else "libblas.so"
    digest = hashlib.sha256(repr((FORMAT, _signature(library), _signature(compiler))).encode())
    for root in _cache_roots():
        folder = root / f"blas-{digest.hexdigest()[:16]}"
        if not is_private(root, create=True):
            continue
        for _attempt in range(3):
            if _is_valid(folder, link, library):
                return Choice(_ldflags(folder, link), str(library), candidate.origin)
            if folder.exists() or folder.is_symlink():
                _discard(folder, root)
            made = Path(tempfile.mkdtemp(prefix="new-", dir=root))
            try:
                _fill(made, link, library)
                if not _probe(made, link, library, compiler):
                    return None
                os.rename(made, folder)
            except OSError:
                continue  # another process was faster: its folder is looked at next
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return None


def _signature(path: str | Path) -> tuple[str, int, int]:
    state = os.stat(path)
    return os.path.realpath(path), state.st_size, state.st_mtime_ns


def _cache_roots() -> Iterator[Path]:
    """Where folders may be kept: the user's cache; if that is of no use, the temporary folder.

    Theano would split paths with blanks; so the machine's own temporary folders come last.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    cache = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))
    for root in (cache / "synk-theano", *temporary_roots("synk-theano")):
        if root.is_absolute() and _PLAIN_PATH.fullmatch(str(root)):
            yield root


def temporary_roots(name: str) -> Iterator[Path]:
    """Folders of this user's below those for temporary files: to be used if they are private."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
        yield Path(folder) / f"{name}-{os.getuid()}"


def is_private(folder: Path, *, create: bool = False) -> bool:
    """Tell whether this is a real folder of this user in which nobody else can write."""
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = os.lstat(folder)
    except OSError:
        return False
    is_folder = (state.st_mode & 0o170000) == 0o040000
    return is_folder and state.st_uid == os.getuid() and not state.st_mode & 0o022


def _is_valid(folder: Path, link: str, library: Path) -> bool:
    try:
        return is_private(folder) and os.readlink(folder / link) == str(library)
    except OSError:
        return False


def _discard(folder: Path, root: Path) -> None:
    # Renamed first, so that no process sees it half removed.
    aside = Path(tempfile.mkdtemp(prefix="old-", dir=root))
    with contextlib.suppress(OSError):
        os.rename(folder, aside / "blas")
    shutil.rmtree(aside, ignore_errors=True)


def _fill(folder: Path, link: str, library: Path) -> None:
    names = {match.decode() for match in _PREFIXED.findall(library.read_bytes())}
    if "sgemm_" in names:
        lines = [f"#define {name} scipy_{name}\n" for name in sorted(names)]
        (folder / "names.h").write_text("".join(lines))
    for name in {link, library.name}:
        os.symlink(library, folder / name)


def _ldflags(folder: Path, link: str) -> str:
    flags = f"-L{folder} -l{link[3:-3]}"
    # Theano hands what is no -L, -l or -I to the compiler, for the modules that use BLAS only.
    if (folder / "names.h").exists():
        flags += f" -include{folder / 'names.h'}"
    return flags


def _probe(folder: Path, link: str, library: Path, compiler: str) -> bool:
    """Compile, link and run the program above; its own process, so that a crash is only a no."""
    flags = _ldflags(folder, link).split()
    if link == "libopenblas.so":
        flags.append("-DWITH_OPENBLAS")
    with tempfile.TemporaryDirectory(prefix="synk-theano-") as scratch:
        source, program = Path(scratch, "probe.cpp"), Path(scratch, "probe")
        source.write_text(_PROBE)
        command = [compiler, str(source), *flags, "-Wl,--allow-shlib-undefined", "-o", str(program)]
        if _run(command) is None:
            return False
        # In Theano's process SciPy has loaded the library and what that needs; here we must say so.
        paths = (str(library.parent), os.environ.get("LD_LIBRARY_PATH", ""))
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
        return _run([str(program)], environment) is not None


def _run(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    """Run a command and return what it printed; None if it failed."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
