"""Which implementation an engine gets."""

import importlib.util

import pytest

from paxkv.platform import resolve_implementation


def test_auto_on_cpu_needs_numba(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert resolve_implementation("auto", "cpu") == "xla"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "numba")
    assert resolve_implementation("auto", "cpu") == "cpu"
    assert resolve_implementation("auto", "gpu") == "xla"
    assert resolve_implementation("auto", "tpu") == "xla"


def test_a_name_is_kept():
    assert resolve_implementation("reference", "tpu") == "reference"
    assert resolve_implementation("gpu_triton", "gpu") == "gpu_triton"


def test_others_are_refused():
    with pytest.raises(ValueError, match="implementation='cuda' is not offered; use auto"):
        resolve_implementation("cuda", "gpu")
    with pytest.raises(ValueError, match="'tpu' runs on a tpu, jax has a cpu; use auto"):
        resolve_implementation("tpu", "cpu")
