"""The choice of precision for float32."""

from __future__ import annotations

import os
import types

import pytest

from synk_core import Runtime
from synk_core._wire.settings import USE_PRECISION, checked_precision
from synk_core.device import TF32_OVERRIDE, Device
from synk_core.exceptions import InputValueError


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    # Set first, so that what a test leaves in the environment goes, too.
    for name in (TF32_OVERRIDE, USE_PRECISION):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_precision_is_the_programs_or_else_the_environments(monkeypatch):
    for given, ours, nvidias, chosen in (
        ("default", "", "", "default"),
        ("default", "tf32", "", "tf32"),
        ("float32", "tf32", "", "float32"),
        ("tf32", "float32", "1", "tf32"),
        ("default", "", "0", "float32"),
        ("float32", "tf32", "0", "float32"),
        ("default", "", "1", "default"),
    ):
        monkeypatch.setenv(USE_PRECISION, ours)
        monkeypatch.setenv(TF32_OVERRIDE, nvidias)
        assert checked_precision(given) == chosen


def test_a_precision_that_is_none_or_excluded_by_the_environment(monkeypatch):
    words = "precision: got .*, expected 'default', 'float32' or 'tf32'"
    for given in (True, None, "TF32"):
        with pytest.raises(InputValueError, match=words):
            Runtime(1, use_gpu=False, precision=given)
    monkeypatch.setenv(TF32_OVERRIDE, "0")
    with pytest.raises(InputValueError, match=r"NVIDIA_TF32_OVERRIDE=0 .* excludes TF32; unset it"):
        checked_precision("tf32")
    monkeypatch.setenv(USE_PRECISION, "double")
    with pytest.raises(InputValueError, match="SYNKHRONOS_PRECISION: got 'double', expected"):
        checked_precision("default")


@pytest.mark.feature("stats")
def test_stats_have_the_precision_of_the_device():
    assert Device().precision == ""
    with Runtime(1, use_gpu=False, precision="float32") as runtime:
        assert TF32_OVERRIDE not in os.environ
        assert "float32 on GPUs" not in str(runtime.stats())
        runtime._rank.device = types.SimpleNamespace(precision="tf32")
        assert runtime.stats().precision == "tf32"
        assert str(runtime.stats()).endswith("float32 on GPUs: precision='tf32'")
        runtime._rank.device = Device()
