"""Flags of g++ that compile the C++ of Theano quickly, for tests."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# What each of Theano's modules begins with takes longer to read than all the rest. Theano compiles
# other programs, too, which have none of it.
HEADER = """\
#if __has_include(<Python.h>)
#include <Python.h>
#include <iostream>
#include <math.h>
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
#include "theano_mod_helper.h"
#endif
"""
# As Theano calls g++: with other flags the compiled header is not used.
FLAGS = "-g -fno-math-errno -DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION -m64 -fPIC"
LIMIT_S = 120


def quick_flags(folder: Path) -> str:
    """Return flags of g++, for Theano's ``gcc.cxxflags``; blocks while a header is compiled.

    The compiler optimises nothing, writes nothing for debuggers, and does not probe this processor,
    which each process would repeat. Gold links, where it is installed, in a third of the time. What
    all modules include is compiled once, into `folder`, which ``CPATH`` names from here on. Without
    g++ or Theano, and on processors other than x86-64, the flags are ``-O0``.
    """
    # Only found: tests decide when they import Theano.
    compiler, theano = shutil.which("g++"), importlib.util.find_spec("theano")
    if compiler is None or theano is None or platform.machine() != "x86_64":
        return "-O0"
    flags = "-O0 -g0 -march=x86-64" + (" -fuse-ld=gold" if shutil.which("ld.gold") else "")
    version = [*sys.version_info[:3], importlib.metadata.version("numpy")]
    folder = folder / "-".join(map(str, version))
    header = folder / "of_all_modules.h"
    if not header.with_suffix(".h.gch").exists():
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(HEADER, encoding="utf-8")
        made = folder / f"{os.getpid()}.gch"
        origin = str(getattr(importlib.util.find_spec("numpy"), "origin", None))
        places = [Path(origin).parent / "core" / "include", sysconfig.get_path("include")]
        places.append(Path(str(theano.origin)).parent / "gof" / "c_code")
        command = [compiler, *FLAGS.split(), *flags.split(), *(f"-I{place}" for place in places)]
        command += ["-x", "c++-header", str(header), "-o", str(made)]
        done = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
        if done.returncode:
            return flags
        # Other processes may do the same now.
        made.replace(header.with_suffix(".h.gch"))
    os.environ["CPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("CPATH")]))
    return f"{flags} -include {header.name}"
