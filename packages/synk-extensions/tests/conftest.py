"""Settings for the tests, made before Theano is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Most of the time of these tests goes into compiling: less of it, and less often anew.
os.environ.setdefault("THEANO_FLAGS", "gcc.cxxflags=-O0,optimizer_excluding=fusion")

# Modules of the tests' own, whose names begin with "_", are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
