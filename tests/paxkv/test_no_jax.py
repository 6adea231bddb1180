"""The host core and whatever simulates load no jax (DESIGN §3)."""

import subprocess
import sys

import pytest

HOST_MODULES = (
    "paxkv",
    "paxkv.accounting",
    "paxkv.allocators",
    "paxkv.analysis.closing",
    "paxkv.analysis.latency",
    "paxkv.analysis.plots",
    "paxkv.analysis.serving",
    "paxkv.analysis.waste",
    "paxkv.block_pool",
    "paxkv.config",
    "paxkv.engine",
    "paxkv.invariants",
    "paxkv.policies.victim",
    "paxkv.recall",
    "paxkv.replay",
    "paxkv.requests",
    "paxkv.results",
    "paxkv.running",
    "paxkv.sampling_params",
    "paxkv.scheduler",
    "paxkv.sequence_tables",
    "paxkv.types",
    "paxkv.workload",
)


@pytest.mark.parametrize("module", HOST_MODULES)
def test_host_module_loads_no_jax(module):
    """In its own process: this one may have loaded jax for other tests."""
    probe = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert run.returncode == 0, f"{module} loads jax, or fails: {run.stderr}"
