"""Find a BLAS that works, and give it a name under which Theano can link it.

Candidates are the OpenBLAS in SciPy's wheels, then a BLAS of this Python's prefix (conda), then of
the system. With each, a small program has to compile, link, run and get the right numbers, once for
each pair of library and compiler (path, size, time). The user's cache keeps the result::

    libopenblas.so                 -> .../scipy.libs/libscipy_openblas-68440149.so
    libscipy_openblas-68440149.so  -> the same, under its name at run time
    names.h                        #define sgemm_ scipy_sgemm_ ... (if names are prefixed)
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .cache import CacheError, cached_folder, signature
from .compiler import run_command

# SciPy >= 1.14 prefixes every name of its OpenBLAS. Only BLAS and LAPACK's Fortran names, CBLAS and
# the thread settings are mapped; no other C code is likely to use these names.
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
    /* each integer is followed by junk, so that a library with 64-bit integers fails here */
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
    """The BLAS to link: the value of Theano's flag, the library's path and its origin."""

    ldflags: str
    library: str
    origin: str


NUMPY = Choice("", "", "NumPy's C API: no BLAS was found that links and computes right")
NO_COMPILER = Choice("", "", "none: without a C++ compiler Theano computes with NumPy")

last: list[Choice] = []
"""The choices made in this process: one, or none if the user has set ``blas.ldflags``."""


def choose(compiler: str | None) -> Choice:
    """Return the BLAS that Theano links with ``compiler`` (a path; None if there is none)."""
    choice = NO_COMPILER if compiler is None else NUMPY
    if compiler is not None and sys.platform == "linux":
        for library, origin in _candidates(compiler):
            with contextlib.suppress(CacheError):
                choice = _prepare(library, origin, compiler)
                break
    last.append(choice)
    return choice


def _candidates(compiler: str) -> Iterator[tuple[Path, str]]:
    from importlib.util import find_spec

    spec = find_spec("scipy")
    for folder in (spec and spec.submodule_search_locations) or ():
        bundled = Path(folder).parent / "scipy.libs"
        for library in sorted(bundled.glob("lib*openblas*.so*")):
            yield library, "SciPy's OpenBLAS"
    for name in ("libopenblas.so", "libblas.so"):
        library = Path(sys.prefix) / "lib" / name
        if library.exists():
            yield library, "this Python's prefix"
    for name in ("libopenblas.so", "libblas.so"):
        found = run_command([compiler, f"-print-file-name={name}"])
        if found is not None and os.path.isabs(found.strip()) and os.path.exists(found.strip()):
            yield Path(found.strip()), "the system's BLAS"


def _prepare(library: Path, origin: str, compiler: str) -> Choice:
    """Return the choice for this library; CacheError if it, or a folder for it, cannot be used."""
    link = "libopenblas.so" if "openblas" in os.path.realpath(library) else "libblas.so"

    def fill(folder: Path) -> None:
        names = {match.decode() for match in _PREFIXED.findall(library.read_bytes())}
        if "sgemm_" in names:
            lines = [f"#define {name} scipy_{name}\n" for name in sorted(names)]
            (folder / "names.h").write_text("".join(lines))
        for name in {link, library.name}:
            os.symlink(library, folder / name)
        if not _probe(folder, link, library, compiler):
            raise CacheError(f"{library} does not link, or computes wrong numbers")

    def is_valid(folder: Path) -> bool:
        try:
            return os.readlink(folder / link) == str(library)
        except OSError:
            return False

    key = (signature(library), signature(compiler))
    folder = cached_folder("blas", key, fill, is_valid)
    return Choice(_ldflags(folder, link), str(library), origin)


def _ldflags(folder: Path, link: str) -> str:
    flags = f"-L{folder} -l{link[3:-3]}"
    # Theano passes anything but -L, -l and -I to the compiler, for modules that use BLAS only.
    if (folder / "names.h").exists():
        flags += f" -include{folder / 'names.h'}"
    return flags


def _probe(folder: Path, link: str, library: Path, compiler: str) -> bool:
    """Compile, link and run the program above: a process of its own, because it may crash."""
    flags = _ldflags(folder, link).split()
    if link == "libopenblas.so":
        flags.append("-DWITH_OPENBLAS")
    with tempfile.TemporaryDirectory(prefix="synk-theano-") as scratch:
        source, program = Path(scratch, "probe.cpp"), Path(scratch, "probe")
        source.write_text(_PROBE)
        command = [compiler, str(source), *flags, "-Wl,--allow-shlib-undefined", "-o", str(program)]
        if run_command(command) is None:
            return False
        # In Theano's process SciPy has loaded the library and its dependencies; here nothing has.
        paths = (str(library.parent), os.environ.get("LD_LIBRARY_PATH", ""))
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
        return run_command([str(program)], environment) is not None
