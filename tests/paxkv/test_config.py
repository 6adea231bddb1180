"""Settings: what is refused, in which words."""

import dataclasses
import math
import re
from typing import get_args

import numpy as np
import pytest

from paxkv.config import (
    CacheConfig,
    EngineConfig,
    HostWrite,
    SchedulerConfig,
    make_engine_config,
)
from paxkv.policies.chosen import ENDS_OF_OUTCOME, PREEMPTED, policies_of
from paxkv.policies.victim import most_blocks
from paxkv.tiers.host_tier import WRITE_POLICIES
from paxkv.types import FinishReason


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: CacheConfig(block_size=0), "block_size=0.*≥ 1"),
        (lambda: CacheConfig(num_blocks=1), "num_blocks=1.*null block.*raise num_blocks"),
        (lambda: CacheConfig(memory_fraction=1.5), r"memory_fraction=1.5.*\(0, 1\]"),
        (lambda: CacheConfig(dtype="int3"), "dtype='int3'.*float32"),
        (lambda: CacheConfig(allocator="slab"), "allocator='slab'.*contiguous_oracle"),
        (lambda: SchedulerConfig(max_num_seqs=0), "max_num_seqs=0.*≥ 1"),
        (lambda: SchedulerConfig(max_num_batched_tokens=0), "batched_tokens=0.*≥ 1"),
        (lambda: SchedulerConfig(batching="static"), "'static'.*iteration, request"),
        (lambda: SchedulerConfig(watermark=1.0), r"watermark=1.0.*\[0, 1\)"),
        (lambda: SchedulerConfig(victim="me"), "victim='me'.*newest, .*fewest_outputs"),
        (lambda: SchedulerConfig(pressure="me"), "pressure='me'.*reject, wait"),
        (lambda: SchedulerConfig(admission="me"), "admission='me'.*watermark, reserve"),
        (lambda: SchedulerConfig(scheduling="me"), "scheduling='me'.*fcfs, priority"),
        (
            lambda: SchedulerConfig(retain=("me",)),
            r"retain=\('me',\).*completed, cancelled",
        ),
        (lambda: SchedulerConfig(swap_s_per_block=-1.0), "swap_s_per_block=-1.0.*≥ 0"),
        (lambda: SchedulerConfig(recompute_s_per_token=-1), "per_token=-1 .*≥ 0"),
        (lambda: CacheConfig(eviction="lur"), r"'lur'.*did you mean 'lru'.*lfu, fifo"),
        (lambda: CacheConfig(granularity="word"), "granularity='word'.*block, token"),
        (lambda: CacheConfig(host_write="never"), "host_write='never'.*write_back"),
        (lambda: CacheConfig(disk_bytes=0), "disk_bytes=0.*≥ 1 byte"),
        (lambda: SchedulerConfig(max_preemptions=-1), "max_preemptions=-1.*≥ 0"),
        (lambda: SchedulerConfig(preempt_every=-1), "preempt_every=-1.*0 for never"),
        (lambda: EngineConfig(model="x", max_context=1), "max_context=1.*≥ 2"),
        (lambda: EngineConfig(model="x", matmul_precision="low"), "'low'.*highest"),
    ],
)
def test_a_bad_value_is_named_with_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("allocator", ["contiguous_max", "contiguous_oracle"])
def test_only_blocks_can_be_shared(allocator):
    with pytest.raises(ValueError, match=f"{allocator}.* has regions; use .*'paged'"):
        CacheConfig(prefix_caching=True, allocator=allocator)


@pytest.mark.parametrize(
    "missing", [{"host_blocks": 0}, {"prefix_caching": False}, {"disk_folder": None}]
)
def test_a_disk_tier_takes_cached_blocks_from_the_host(missing):
    """Without a folder there is none, and nothing is missing."""
    settings = {"disk_folder": "kv", "host_blocks": 8, "prefix_caching": True, **missing}
    if settings["disk_folder"] is None:
        assert CacheConfig(**settings).disk_folder is None
    else:
        with pytest.raises(ValueError, match="prefix_caching and host_blocks > 0, not"):
            CacheConfig(**settings)


def test_a_policy_may_be_an_import_path():
    path = "paxkv.policies.victim:most_blocks"
    assert SchedulerConfig(victim=path).victim == path
    assert policies_of(SchedulerConfig(victim=path), 17).victim is most_blocks
    with pytest.raises(ValueError, match="victim='no.such:thing'.*cannot be imported"):
        SchedulerConfig(victim="no.such:thing")


@pytest.mark.parametrize("name", ["victim", "pressure", "admission", "scheduling"])
@pytest.mark.parametrize("wrong", [None, 5, ["newest"]])
def test_a_policy_has_a_name(name, wrong):
    with pytest.raises(ValueError, match=f"{name}=.* is no name; use one of "):
        make(SchedulerConfig, **{name: wrong})


def test_ends_whose_blocks_stay_cached():
    retained = policies_of(SchedulerConfig(retain=("completed", "failed")), 17)
    assert retained.retains(FinishReason.STOP_STRING)
    assert retained.retains(FinishReason.DROPPED_POOL_FULL)
    assert not retained.retains(FinishReason.ABORTED)
    assert not retained.retains_preempted
    assert make(SchedulerConfig, retain="preempted").retain == ("preempted",)
    assert policies_of(SchedulerConfig(), 17).retains(FinishReason.ABORTED)


def test_every_write_policy_of_the_host_is_offered():
    assert get_args(HostWrite) == WRITE_POLICIES


def test_each_word_of_retain_means_something():
    assert {*ENDS_OF_OUTCOME, PREEMPTED} == set(SchedulerConfig().retain)


def test_defaults_hold_together():
    config = EngineConfig(model="x")
    assert config.cache.block_size == 16
    assert config.scheduler.max_num_seqs <= config.scheduler.max_num_batched_tokens


INTEGERS = {
    CacheConfig: (
        "block_size",
        "num_blocks",
        "shuffle_seed",
        "num_window_blocks",
        "host_blocks",
        "disk_bytes",
        "delay_steps",
    ),
    SchedulerConfig: (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_preemptions",
        "preempt_every",
    ),
    EngineConfig: ("seed", "max_context"),
}
NUMBERS = {
    CacheConfig: ("memory_fraction",),
    SchedulerConfig: ("watermark", "swap_s_per_block", "recompute_s_per_token"),
}
FLAGS = {
    CacheConfig: ("prefix_caching", "deduplicate", "checksums", "poison", "force_miss"),
    SchedulerConfig: ("hold_shared_prefixes",),
}


def make(config_type, **values):
    """As outside tests, where annotations are not enforced before the object's own."""
    config = object.__new__(config_type)
    for field in dataclasses.fields(config_type):
        object.__setattr__(config, field.name, values.get(field.name, field.default))
    config.__post_init__()
    return config


@pytest.mark.parametrize("wrong", [16.0, 2.5, True, "16", math.nan, [16]])
@pytest.mark.parametrize(
    ("config_type", "name"),
    [(config_type, name) for config_type, names in INTEGERS.items() for name in names],
)
def test_an_integer_is_one(config_type, name, wrong):
    message = re.escape(f"{name}={wrong!r} is ") + ".*integer; .*"
    with pytest.raises(ValueError, match=message):
        make(config_type, **{name: wrong})
    assert type(getattr(make(config_type, **{name: np.int32(16)}), name)) is int


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1, "0.5", True, None, [0.5]])
@pytest.mark.parametrize(
    ("config_type", "name"),
    [(config_type, name) for config_type, names in NUMBERS.items() for name in names],
)
def test_a_share_is_a_finite_number(config_type, name, wrong):
    with pytest.raises(ValueError, match=re.escape(f"{name}={wrong!r} ") + ".*;"):
        make(config_type, **{name: wrong})


@pytest.mark.parametrize("wrong", [0, 1, None, "yes"])
@pytest.mark.parametrize(
    ("config_type", "name"),
    [(config_type, name) for config_type, names in FLAGS.items() for name in names],
)
def test_a_flag_is_a_bool(config_type, name, wrong):
    with pytest.raises(ValueError, match=re.escape(f"{name}={wrong!r} is no bool")):
        make(config_type, **{name: wrong})


@pytest.mark.parametrize("wrong", [None, 5, ["paged"]])
def test_a_name_is_one_of_those_offered(wrong):
    with pytest.raises(ValueError, match="allocator=.* is not offered; use one of paged"):
        make(CacheConfig, allocator=wrong)


def test_a_seed_has_64_bits():
    assert EngineConfig(model="x", seed=2**64 - 1).seed == 2**64 - 1
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=f"seed={seed} must be in 0..{2**64 - 1}"):
            EngineConfig(model="x", seed=seed)


@pytest.mark.parametrize(
    ("pool_positions", "message"),
    [(-1, "pool_positions=-1 must be >= 0"), (15, "pool_positions=15 .*block_size=16")],
)
def test_a_pool_holds_a_block(pool_positions, message):
    with pytest.raises(ValueError, match=message):
        make_engine_config(
            engine={"model": "x"}, cache={}, scheduler={}, pool_positions=pool_positions
        )
