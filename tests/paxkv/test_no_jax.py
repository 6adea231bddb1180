"""The host core and whatever simulates load no jax (DESIGN §3)."""

import subprocess
import sys

import pytest

HOST_MODULES = (
    "paxkv",
    "paxkv.accounting",
    "paxkv.admitting",
    "paxkv.allocators",
    "paxkv.analysis.closing",
    "paxkv.analysis.event_replay",
    "paxkv.analysis.hit_rates",
    "paxkv.analysis.host_speed",
    "paxkv.analysis.latency",
    "paxkv.analysis.perfetto",
    "paxkv.analysis.plots",
    "paxkv.analysis.pool_page",
    "paxkv.analysis.pool_picture",
    "paxkv.analysis.request_lives",
    "paxkv.analysis.serving",
    "paxkv.analysis.sharing",
    "paxkv.analysis.waste",
    "paxkv.beam",
    "paxkv.block_pool",
    "paxkv.cache_keys",
    "paxkv.config",
    "paxkv.engine",
    "paxkv.event_log",
    "paxkv.events",
    "paxkv.host_bench",
    "paxkv.host_peer",
    "paxkv.host_stream",
    "paxkv.idle_blocks",
    "paxkv.invariants",
    "paxkv.journal",
    "paxkv.move_batches",
    "paxkv.move_checks",
    "paxkv.moves",
    "paxkv.policies.admission",
    "paxkv.policies.chosen",
    "paxkv.policies.eviction",
    "paxkv.policies.naming",
    "paxkv.policies.pressure",
    "paxkv.policies.scheduling",
    "paxkv.policies.victim",
    "paxkv.preempting",
    "paxkv.prefix_cache",
    "paxkv.prefix_replay",
    "paxkv.radix_tree",
    "paxkv.recall",
    "paxkv.replay",
    "paxkv.request_options",
    "paxkv.requests",
    "paxkv.results",
    "paxkv.running",
    "paxkv.samples",
    "paxkv.sampling_params",
    "paxkv.scheduler",
    "paxkv.scheduler_building",
    "paxkv.sequence_tables",
    "paxkv.swapping",
    "paxkv.systems",
    "paxkv.tiers.disk_store",
    "paxkv.tiers.host_store",
    "paxkv.tiers.host_tier",
    "paxkv.types",
    "paxkv.waiting",
    "paxkv.workload",
)


@pytest.mark.parametrize("module", HOST_MODULES)
def test_host_module_loads_no_jax(module):
    """In its own process: this one may have loaded jax for other tests."""
    probe = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert run.returncode == 0, f"{module} loads jax, or fails: {run.stderr}"
