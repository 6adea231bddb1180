"""The systems of a comparison: one engine's settings, with each allocator."""

from collections.abc import Mapping
from typing import Any

from paxkv.config import EngineConfig, make_engine_config
from paxkv.policies.pressure import SWAPPING

PAGED = "paged"
# Regions cannot be shared, moved to the host or found again, so these settings say nothing
# of contiguous systems, which have the defaults. All others are the same for all systems.
PAGED_ONLY = (
    "num_window_blocks",
    "prefix_caching",
    "granularity",
    "eviction",
    "deduplicate",
    "host_blocks",
    "host_write",
    "disk_folder",
    "disk_bytes",
    "checksums",
    "poison",
    "force_miss",
    "delay_steps",
    "hold_shared_prefixes",
    "retain",
    "swap_s_per_block",
    "recompute_s_per_token",
)


def system_config(
    allocator: str,
    *,
    engine: Mapping[str, Any],
    cache: Mapping[str, Any],
    scheduler: Mapping[str, Any],
    pool_positions: int,
) -> EngineConfig:
    """The engine of one system; see `make_engine_config` for the subtrees and errors.

    A contiguous system has the defaults of `PAGED_ONLY`, and recomputes where the paged
    one swaps.
    """
    cache, scheduler = dict(cache), dict(scheduler)
    if allocator != PAGED:
        for name in PAGED_ONLY:
            cache.pop(name, None)
            scheduler.pop(name, None)
        if scheduler.get("pressure") in SWAPPING:
            del scheduler["pressure"]
    return make_engine_config(
        engine=engine,
        cache={**cache, "allocator": allocator},
        scheduler=scheduler,
        pool_positions=pool_positions,
    )
