"""The compiled step: the pool is updated in place, and few programs serve everything."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from paxkv.attention import attention_options
from paxkv.cache import plan_cache
from paxkv.config import CacheConfig
from paxkv.device_executor import empty_plan
from paxkv.models.config import ModelConfig, RopeConfig
from paxkv.models.decoder import Decoder
from paxkv.sampling import SamplingFeatures
from paxkv.sampling_params import SamplingParams
from paxkv.sampling_table import SamplingTable
from paxkv.sequence_tables import SequenceTables
from paxkv.step import StepOptions, step
from paxkv.step_inputs import StepShape, make_buckets, pack
from tests.harness import BASE, engine_of
from tests.tiny_model import tiny_decoder

POOL_BYTES = 256 * 2**20
MAX_CONTEXT = 1024
BLOCK_SIZE = 16
SHAPES = {
    "decode": StepShape(num_tokens=16, num_seqs=16),
    "mixed": StepShape(num_tokens=128, num_seqs=16),
}


def model() -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_layers=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        max_context=MAX_CONTEXT,
        rope=RopeConfig(theta=1e4),
        layer_windows=(0, 64) * 4,
        attention_scale=0.125,
    )


def compiled_memory(shape: StepShape, num_blocks_factor: int, dtype: str):
    """Memory analysis of one greedy step, and the bytes of its pool."""
    config = model()
    graph, params = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    sized = plan_cache(
        config,
        CacheConfig(block_size=BLOCK_SIZE, num_blocks=2, dtype=dtype),
        max_num_seqs=16,
        max_context=MAX_CONTEXT,
        max_new_tokens=64,
        platform="cpu",
        free_bytes=2**40,
    )
    num_blocks = POOL_BYTES // sized.bytes_per_block * num_blocks_factor
    sized = dataclasses.replace(
        sized, blocks_per_group=(num_blocks,) * len(sized.layers_per_group)
    )
    cache = jax.eval_shape(sized.allocate)
    widths = (MAX_CONTEXT // BLOCK_SIZE,) * len(sized.layers_per_group)
    tables = SequenceTables(16, MAX_CONTEXT, widths)
    plan = empty_plan(tables)
    sampling, features = SamplingTable(16, config.vocab_size, 0, ()).pack(
        plan, shape.num_seqs
    )
    options = StepOptions(
        attention=attention_options(config, "xla"),
        features=features,
        prompt_logprobs=None,
        matmul_precision="highest",
    )
    inputs = pack(plan, shape, (BLOCK_SIZE,) * len(widths), with_targets=False)
    lowered = step.lower(params, cache, inputs, sampling, graph=graph, options=options)
    return lowered.compile().memory_analysis(), sized.nbytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
def test_pool_is_aliased_and_temporaries_do_not_grow_with_it(name, dtype):
    memory, pool_bytes = compiled_memory(SHAPES[name], 1, dtype)
    larger_memory, larger_pool_bytes = compiled_memory(SHAPES[name], 4, dtype)
    # what reports call bytes per token is what the compiled step takes as its pool
    assert pool_bytes >= 0.99 * POOL_BYTES
    assert memory.alias_size_in_bytes == pool_bytes
    assert larger_memory.alias_size_in_bytes == larger_pool_bytes
    assert memory.temp_size_in_bytes == larger_memory.temp_size_in_bytes
    assert memory.temp_size_in_bytes < 0.05 * pool_bytes


def test_buckets_hold_every_plan_within_the_limits():
    buckets = make_buckets(max_num_seqs=24, max_num_batched_tokens=300)
    for num_seqs in range(1, 25):
        assert buckets.shape_for(np.ones(num_seqs, np.int32)).num_seqs >= num_seqs
    for num_tokens in (2, 63, 64, 65, 299, 300):
        shape = buckets.shape_for(np.asarray([num_tokens - 1, 1]))
        assert shape.num_tokens >= num_tokens
    assert all(not s.is_decode or s.num_seqs <= 24 for s in buckets.shapes)
    assert len(buckets.shapes) == len(set(buckets.shapes))


def test_warm_up_compiles_every_greedy_shape_once_and_steps_add_none():
    engine, executor = engine_of(BASE, tiny_decoder())
    before = step._cache_size()
    executor.warm_up(engine.scheduler.tables)
    warm = step._cache_size()
    assert executor.num_programs == len(executor.buckets.shapes) >= warm - before
    for length in (1, 5, 40, 63):
        engine.add(
            range(length),
            SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True),
        )
    with jax.transfer_guard("disallow"):
        while engine.has_unfinished:
            engine.step()
    assert step._cache_size() == warm
    assert executor.num_programs == len(executor.buckets.shapes)


def test_a_new_sampling_feature_is_a_new_program_and_is_counted():
    engine, executor = engine_of(BASE, tiny_decoder())
    for temperature in (0.0, 0.7, 0.7):
        engine.add([1, 2], SamplingParams(max_tokens=3, temperature=temperature))
        while engine.has_unfinished:
            engine.step()
    features = {options.features for _, options, _ in executor.programs}
    assert features == {SamplingFeatures(), SamplingFeatures(random=True)}
    assert executor.num_programs == 4  # a mixed and a decode shape of each
