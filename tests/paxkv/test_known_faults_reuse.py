"""Faults that users of other systems met: wrong results where K/V is reused."""

import numpy as np
import pytest

from paxkv.block_pool import NULL_BLOCK
from paxkv.moves import SwapOut
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from tests.fakes import fake_completion, make_engine, make_request, make_scheduler
from tests.scheduling import add, step
from tests.told import serve

PROMPT = tuple(range(1, 17))


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)


def serve_one(engine, prompt, max_tokens=6, **sampling):
    request_id = engine.add(prompt, greedy(max_tokens, **sampling))
    told = serve(engine)
    return told.tokens[request_id, 0], told.metrics[request_id, 0]


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_a_prefill_that_starts_behind_a_hit_degenerates(chunk):
    """tenstorrent/vllm#415: the hit path wrong, the miss path right, one greedy request."""
    engine = make_engine(prefix_caching=True, max_num_batched_tokens=chunk)
    cold, _ = serve_one(engine, PROMPT)
    warm, metrics = serve_one(engine, (*PROMPT, *cold[:3]))
    assert metrics.num_cached_tokens == 16
    assert (*cold[:3], *warm) == fake_completion(PROMPT, 9)


@pytest.mark.parametrize("seed", range(5))
def test_a_hit_reads_blocks_as_if_they_were_contiguous(seed):
    """tanishqkumar/ssd#23: the prefill of a hit was not given the block table."""
    engine = make_engine(prefix_caching=True, shuffle_seed=seed, num_blocks=40)
    serve_one(engine, PROMPT)
    request_id = engine.add((*PROMPT, 17, 18), greedy(6))
    engine.step()
    (row,) = engine.scheduler.running.rows.tolist()
    blocks = engine.scheduler.tables.blocks(0, row)
    assert (np.diff(blocks) != 1).any()
    first = fake_completion((*PROMPT, 17, 18), 6)
    assert serve(engine).tokens[request_id, 0] == first[1:]


def test_prompt_logprobs_with_a_hit_fail():
    """vllm#13105: such a request computes all its prompt, and still feeds the cache."""
    engine = make_engine(prefix_caching=True)
    _, metrics = serve_one(engine, PROMPT, 1, prompt_logprobs=1)
    assert metrics.num_cached_tokens == 0
    _, metrics = serve_one(engine, PROMPT, 1, prompt_logprobs=1)
    assert metrics.num_cached_tokens == 0
    assert serve_one(engine, PROMPT, 1)[1].num_cached_tokens == 15


def test_an_evicted_block_is_still_found_and_a_fresh_one_counts_as_computed():
    """vllm#4764, #5364: the evicted block stayed in the map of cached ones."""
    engine = make_engine(num_blocks=6, prefix_caching=True)
    serve_one(engine, PROMPT, 2)
    pool = engine.scheduler.allocator.pools[0]
    old = {block for block in range(6) if pool.node_of[block] is not None}
    other = tuple(range(101, 117))
    tokens, metrics = serve_one(engine, other, 2)
    assert metrics.num_cached_tokens == 0
    assert tokens == fake_completion(other, 2)
    named = [node for node in pool.node_of if node is not None]
    known = [np.frombuffer(node.key, np.int32).tolist() for node in named]
    assert sum(tokens[0] > 100 for tokens in known) == 4
    assert old & {node.blocks[0] for node in named}  # the same memory, by another name
    tokens, metrics = serve_one(engine, PROMPT, 2)
    assert metrics.num_cached_tokens < 8
    assert tokens == fake_completion(PROMPT, 2)


def test_a_table_still_names_a_duplicate_that_was_freed():
    """sgl-project/mini-sglang#142: pages were freed before the page table was rewritten."""
    engine = make_engine(prefix_caching=True, poison=True)
    for _ in range(3):
        engine.add(PROMPT, greedy(6))
    for _ in range(3):
        engine.step()
        pool, tables = engine.scheduler.allocator.pools[0], engine.scheduler.tables
        named = set(tables.block_tables[0].ravel().tolist()) - {NULL_BLOCK}
        assert not named & set(pool.free_blocks)
    whole = fake_completion(PROMPT, 6)
    assert all(whole[-len(one) :] == one for one in serve(engine).tokens.values())


def test_a_hit_counts_although_a_part_of_its_state_is_gone():
    """sglang#39830, #31108: it is valid only as far as every cache group has its blocks."""
    engine = make_engine(prefix_caching=True, windows=(None, None), num_blocks=17)
    serve_one(engine, PROMPT, 1)
    first, second = engine.scheduler.allocator.pools
    second.free(second.allocate(second.num_free + 2))  # two of its four blocks go
    tokens, metrics = serve_one(engine, PROMPT, 3)
    assert metrics.num_cached_tokens == 8
    assert tokens == fake_completion(PROMPT, 3)
    assert first.num_idle == second.num_idle


def test_reuse_samples_ids_outside_of_the_vocabulary():
    """NVIDIA/TensorRT-LLM#2217: with reuse, token ids came out of range."""
    scheduler = make_scheduler(prefix_caching=True)
    add(scheduler, make_request(9))
    with pytest.raises(AssertionError, match=r"sampled ids \[251\] outside of \[0, 251\)"):
        step(scheduler, token=251)


def test_tokens_of_other_prompts_appear_when_the_host_cache_is_on():
    """NVIDIA/TensorRT-LLM#8813: blocks were reused before their copy was complete. All
    that a plan stores is stored before anything fills its blocks anew."""
    engine = make_engine(
        num_blocks=8, prefix_caching=True, host_blocks=6, poison=True, watermark=0.0
    )
    prompts = [tuple(range(20 * i + 1, 20 * i + 17)) for i in range(4)]
    for _ in range(3):
        for prompt in prompts:
            assert serve_one(engine, prompt)[0] == fake_completion(prompt, 6)


def test_what_a_preempted_request_stores_was_given_to_another():
    """dingodb/DingoCache#76: an asynchronous save read blocks that had a new owner, and
    poisoned the store. Here the store precedes the new owner's writes in the same plan,
    and nothing is found in it before it is complete."""
    engine = make_engine(
        num_blocks=9,
        prefix_caching=True,
        host_blocks=16,
        host_write="write_through",
        preempt_every=2,
        max_preemptions=3,
        poison=True,
        watermark=0.0,
    )
    stored, run = [], engine.executor.run
    pool = engine.executor.pools[0]

    def checking(plan):
        before = pool.copy()
        for move in plan.moves:
            if isinstance(move, SwapOut):
                stored.append((move.host_slot, before[move.block].tolist()))
        result = run(plan)
        for slot, content in stored[-len(plan.moves) :]:
            assert engine.executor.host[0, slot].tolist() in [
                content,
                *[one for other, one in stored if other == slot],
            ]
        return result

    engine.executor.run = checking
    prompts = [tuple(range(20 * i + 1, 20 * i + 15)) for i in range(3)]
    for prompt in prompts:
        engine.add(prompt, greedy(8))
    told = serve(engine)
    assert stored
    for request_id, prompt in enumerate(prompts):
        assert told.tokens[request_id, 0] == fake_completion(prompt, 8)
        warm, metrics = serve_one(engine, prompt, 8)
        assert warm == fake_completion(prompt, 8)


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize("num_blocks", [1, 2, 4])
def test_a_prompt_of_whole_blocks_that_is_all_cached_has_nothing_to_run(
    num_blocks, granularity
):
    """vllm#9972, #11186, #17999: at least one token is computed, for its logits; and the
    chain of keys goes on behind it."""
    engine = make_engine(prefix_caching=True, granularity=granularity)
    prompt = PROMPT[: 4 * num_blocks]
    serve_one(engine, prompt, 5)
    tokens, metrics = serve_one(engine, prompt, 5)
    assert metrics.num_cached_tokens == 4 * num_blocks - 1
    assert tokens == fake_completion(prompt, 5)
    longer = (*prompt, *tokens[:4])
    _, metrics = serve_one(engine, longer, 1)
    assert metrics.num_cached_tokens == len(longer) - 1


def test_a_request_reads_the_cache_although_it_was_told_not_to():
    """sglang's switch to force a miss, as an option of a request and as a fault mode."""
    engine = make_engine(prefix_caching=True)
    serve_one(engine, PROMPT)
    request_id = engine.add(PROMPT, greedy(2), options=RequestOptions(reads_cache=False))
    assert serve(engine).metrics[request_id, 0].num_cached_tokens == 0
    engine = make_engine(prefix_caching=True, force_miss=True)
    serve_one(engine, PROMPT)
    assert serve_one(engine, PROMPT)[1].num_cached_tokens == 0
