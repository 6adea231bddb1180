import pytest

from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig


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
        (lambda: SchedulerConfig(watermark=1.0), r"watermark=1.0.*\[0, 1\)"),
        (lambda: SchedulerConfig(victim="me"), "victim='me'.*newest, fewest_outputs"),
        (lambda: SchedulerConfig(max_preemptions=-1), "max_preemptions=-1.*≥ 0"),
        (lambda: SchedulerConfig(preempt_every=-1), "preempt_every=-1.*0 for never"),
        (lambda: EngineConfig(model="x", max_context=1), "max_context=1.*≥ 2"),
        (lambda: EngineConfig(model="x", matmul_precision="low"), "'low'.*highest"),
    ],
)
def test_a_bad_value_is_named_with_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_defaults_hold_together():
    config = EngineConfig(model="x")
    assert config.cache.block_size == 16
    assert config.scheduler.max_num_seqs <= config.scheduler.max_num_batched_tokens
