"""Settings for the tests, made before Theano is imported."""

from __future__ import annotations

import os

# Most of the time of these tests goes into compiling: less of it, and less often anew.
os.environ.setdefault("THEANO_FLAGS", "gcc.cxxflags=-O0,optimizer_excluding=fusion")
