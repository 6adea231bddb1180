"""The systems of a comparison differ in what their allocators make differ, only."""

from dataclasses import fields

import pytest

from configs import serve
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.systems import PAGED_ONLY, system_config

SET_BY_THE_COMPARISON = {"num_blocks", "allocator", "model_revision", "latent_prefill"}
REGIONS = "contiguous_oracle"


def names(config: type) -> set[str]:
    return {field.name for field in fields(config)}


def of(allocator: str, cache: dict | None = None, scheduler: dict | None = None):
    return system_config(
        allocator,
        engine={"model": "any"},
        cache=cache or {},
        scheduler=scheduler or {},
        pool_positions=64,
    )


def test_the_config_file_has_every_setting_and_its_default():
    config = serve.get_config()
    defaults = CacheConfig(), SchedulerConfig()
    for tree, kept in zip((config.cache, config.scheduler), defaults, strict=True):
        assert {*tree} == names(type(kept)) - SET_BY_THE_COMPARISON
        for name in PAGED_ONLY:
            if name in tree:
                assert tree[name] == getattr(kept, name), name
    assert {*config.engine} | SET_BY_THE_COMPARISON >= (
        names(EngineConfig) - {"cache", "scheduler"}
    )


def test_settings_of_blocks_are_those_of_paged_alone():
    assert {*PAGED_ONLY} <= names(CacheConfig) | names(SchedulerConfig)
    cache = {
        "block_size": 8,
        "prefix_caching": True,
        "host_blocks": 8,
        "poison": True,
        "shuffle_seed": 3,
    }
    scheduler = {"pressure": "preempt_swap", "retain": ("completed",), "max_num_seqs": 5}
    paged, regions = of("paged", cache, scheduler), of(REGIONS, cache, scheduler)
    assert paged.cache.prefix_caching and paged.cache.poison
    assert paged.cache.host_blocks == 8
    assert paged.scheduler.pressure == "preempt_swap"
    assert paged.scheduler.retain == ("completed",)
    assert regions.cache == CacheConfig(
        block_size=8, num_blocks=9, shuffle_seed=3, allocator=REGIONS
    )
    assert regions.scheduler == SchedulerConfig(max_num_seqs=5)
    assert cache["prefix_caching"] and scheduler["pressure"]  # the trees stay as they were


@pytest.mark.parametrize("pressure", ["wait", "reject"])
def test_pressure_without_swaps_is_the_same_for_all(pressure):
    for allocator in ("paged", REGIONS):
        assert of(allocator, {}, {"pressure": pressure}).scheduler.pressure == pressure
