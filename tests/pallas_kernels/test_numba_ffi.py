"""Numba behind XLA's foreign functions: what is missing is said, what is kept is found."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

import numba

from pallas_kernels import numba_ffi

WRITE = """
import jax, jax.numpy as jnp
from pallas_kernels.kv_blocks import make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv import write_kv
layout = kv_layout(1, 8, "float32", "cpu")
cache = make_cache(layout, num_layers=1, num_blocks=4, block_size=2)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
write = jax.jit(lambda cache: write_kv(
    cache, jnp.ones((1, 2, 8)), jnp.int32(0), jnp.asarray([5], jnp.int32),
    implementation="cpu",
))
print("sum", float(write(cache).kv.sum()))
print("hits", sum(event.endswith("/cache_hits") for event in hits))
"""

WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import jax.numpy as jnp
from pallas_kernels.kv_blocks import make_cache
from pallas_kernels.layout import kv_layout
from pallas_kernels.write_kv import write_kv
layout = kv_layout(1, 8, "float32", "cpu")
cache = make_cache(layout, num_layers=1, num_blocks=4, block_size=2)
try:
    write_kv(
        cache, jnp.ones((1, 2, 8)), 0, jnp.asarray([5], jnp.int32), implementation="cpu"
    )
except ImportError as error:
    print(error)
"""


def run_python(source, **variables):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | variables
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_numba_the_extra_is_named():
    message = run_python(WITHOUT_NUMBA)
    assert "pip install 'paxkv[cpu]'" in message
    assert "implementation='xla'" in message


def test_a_program_of_the_compilation_cache_finds_its_kernel(tmp_path):
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first, second = (run_python(WRITE, **settings).split() for _ in range(2))
    assert first[:2] == second[:2] == ["sum", "16.0"]
    assert int(second[3]) > int(first[3])


def test_unsafe_threads_are_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(numba, "threading_layer", lambda: "workqueue")
        with pytest.raises(ValueError, match="'workqueue', must be one of.*Install OpenMP"):
            numba_ffi.num_threads.__wrapped__()
    assert numba_ffi.num_threads() == numba.get_num_threads()


def test_a_version_follows_the_content(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("a = 1")
    version = numba_ffi.source_version([source])
    assert version == numba_ffi.source_version([source]) > 0
    source.write_text("a = 2")
    assert version != numba_ffi.source_version([source])


def test_a_kernel_is_registered_once():
    from pallas_kernels import cpu_rows

    names = {
        numba_ffi.register("move_rows", cpu_rows.make_handler, cpu_rows.VERSION)
        for _ in range(2)
    }
    assert names == {f"paxkv_move_rows_{cpu_rows.VERSION:x}"}
