"""Windowed and unbounded layers in pools of their own, under one scheduler."""

import numpy as np
import pytest

from paxkv.attention import attention_options
from paxkv.cache import plan_cache
from paxkv.config import CacheConfig
from paxkv.models.cache_groups import CacheLayer, cache_layers, layers_per_group, period_of
from paxkv.sampling_params import SamplingParams
from tests.harness import SMALLEST_GAP, Case, Work, engine_of, serve, smallest_gap
from tests.tiny_model import tiny_decoder

# A period of three layers, and two that are left over.
WINDOWS = (0, 9, 9, 0, 9)


def hybrid_decoder():
    return tiny_decoder(windows=WINDOWS)


def work() -> tuple[Work, ...]:
    rng = np.random.default_rng(5)
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    return tuple(
        Work(prompt_ids=tuple(rng.integers(0, 60, size).tolist()), sampling=sampling)
        for size in (3, 40, 17, 26, 9)
    ) + (
        # prompts that share all of it, and most
        Work(prompt_ids=tuple(range(40)), sampling=sampling),
        Work(prompt_ids=tuple(range(40)), sampling=sampling),
        Work(prompt_ids=(*range(40), 7, 8, 9), sampling=sampling),
    )


@pytest.fixture(scope="module")
def tokens():
    return serve(Case(), work(), hybrid_decoder())


def test_tokens_are_those_of_dense_attention(tokens):
    for index, request in enumerate(work()):
        gap = smallest_gap(
            hybrid_decoder(), request, tokens[index, 0], request_id=index, seed=0
        )
        assert gap > SMALLEST_GAP


@pytest.mark.parametrize(
    "case",
    [
        Case(block_size=1, poison=True, shuffle_seed=3),
        Case(block_size=7, shuffle_seed=1, chunk=13),
        Case(block_size=4, shuffle_seed=2, preempt_every=3, pool_tokens=100),
        Case(allocator="contiguous_max", shuffle_seed=1, poison=True),
        Case(block_size=2, num_window_blocks=30, poison=True, chunk=8),
        Case(block_size=4, prefix_caching=True, max_num_seqs=2, poison=True),
        Case(block_size=4, prefix_caching=True, granularity="token", max_num_seqs=1),
        Case(block_size=4, prefix_caching=True, host_blocks=6, pool_tokens=64),
        Case(block_size=4, pressure="preempt_swap", preempt_every=2, host_blocks=40),
    ],
    ids=[
        *("b1-poison", "b7-chunks", "b4-preempted", "contiguous", "window", "cached"),
        *("by-token", "host", "swapped"),
    ],
)
def test_how_it_is_served_changes_no_token(tokens, case):
    assert serve(case, work(), hybrid_decoder()) == tokens


def test_each_kind_of_layer_has_its_pool_and_its_table():
    config = hybrid_decoder().config
    assert cache_layers(config) == (
        CacheLayer(0, 0),
        CacheLayer(1, 0),
        CacheLayer(1, 1),
        CacheLayer(0, 1),
        CacheLayer(1, 2),
    )
    assert layers_per_group(config) == (2, 3)
    assert attention_options(config, "xla").windowed == (False, True)
    engine, executor = engine_of(Case(), hybrid_decoder())
    assert [pool.num_layers for pool in executor.cache] == [2, 3]
    assert len(engine.scheduler.tables.block_tables) == 2
    both = plan_cache(
        config,
        CacheConfig(num_blocks=5),
        max_num_seqs=1,
        max_context=64,
        max_new_tokens=64,
        platform="cpu",
        free_bytes=2**30,
    )
    assert both.nbytes == 5 * 16 * 5 * 2 * 2 * 8 * 4  # blocks, B, layers, K/V, K, D, f32
    assert sum(pool.kv.nbytes for pool in both.allocate()) == both.nbytes


def test_windowed_layers_hold_only_their_window():
    """Poisoned, so that a read behind the window would show; 88 positions in the end."""
    case = Case(block_size=4, chunk=8, poison=True)
    engine, _ = engine_of(case, hybrid_decoder())
    sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    engine.add(range(50), sampling)
    most = [0, 0]
    while engine.has_unfinished:
        engine.step()
        for group, counts in enumerate(engine.scheduler.tables.num_blocks):
            behind = engine.scheduler.tables.num_behind[group]
            most[group] = max(most[group], int((counts - behind).max()))
    assert most[0] == -(-88 // 4)  # the last token is never an input
    assert most[1] <= -(-(9 + 8) // 4) + 1


def test_a_windowed_pool_is_as_large_as_its_windows_and_the_saving_is_told():
    config = hybrid_decoder().config
    sized = plan_cache(
        config,
        CacheConfig(block_size=4, num_blocks=200),
        max_num_seqs=2,
        max_context=128,
        max_new_tokens=8,
        platform="cpu",
        free_bytes=2**30,
    )
    windowed = 2 * (-(-(9 + 8) // 4) + 1) + 1
    assert sized.blocks_per_group == (200, windowed)
    per_layer = sized.layout.bytes_per_block(4)
    assert sized.saved_bytes == (200 - windowed) * 3 * per_layer
    assert sum(pool.kv.nbytes for pool in sized.allocate()) == sized.nbytes


def test_all_layers_windowed_share_prefixes_without_their_heads():
    decoder = tiny_decoder(windows=(9, 9))
    expected = serve(Case(), work(), decoder)
    for case in (
        Case(block_size=4, prefix_caching=True, max_num_seqs=1, poison=True),
        Case(block_size=2, prefix_caching=True, pool_tokens=90, max_num_seqs=2),
    ):
        assert serve(case, work(), decoder) == expected


@pytest.mark.parametrize("windows", [(0, 0, 0), (9, 9)])
def test_one_kind_of_layer_is_one_group(windows):
    config = tiny_decoder(windows=windows).config
    assert layers_per_group(config) == (len(windows),)
    assert attention_options(config, "xla").windowed == (windows[0] > 0,)


@pytest.mark.parametrize(
    ("groups", "period"),
    [
        ((0, 0, 0), 1),
        ((0, 1, 0, 1), 2),
        ((1, 1, 1, 1, 1, 0) * 3, 6),
        ((1, 1, 1, 1, 1, 0) * 4 + (1, 1), 6),
        ((0, 1, 1), 3),
        ((0,), 1),
    ],
)
def test_period(groups, period):
    assert period_of(groups) == period
