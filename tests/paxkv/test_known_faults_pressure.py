"""Faults that users of other systems met: deadlocks, thrash, swap, eviction, beams."""

import time

import numpy as np
import pytest

from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import fake_completion, make_engine, make_request, make_scheduler
from tests.scheduling import add, commit, slices, step
from tests.told import serve

PROMPT = tuple(range(1, 17))


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)


def serve_one(engine, prompt, max_tokens=1):
    request_id = engine.add(prompt, greedy(max_tokens))
    return serve(engine).metrics[request_id, 0]


@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_a_request_larger_than_the_cache_hangs_the_engine(windows):
    """vllm#39734: under max_model_len, but never to fit; it is refused with the numbers."""
    engine = make_engine(num_blocks=5, max_context=64, windows=windows)
    engine.add(tuple(range(1, 18)), greedy(8))
    engine.add(PROMPT[:4], greedy(4))
    outcome = engine.step()
    (refused,) = [one for one in outcome.updates if one.request_id == 0]
    assert refused.finish.reason is FinishReason.REJECTED_NEVER_FITS
    assert "16 positions; raise num_blocks" in refused.finish.message
    assert set(serve(engine).reasons.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("victim", VICTIM_POLICIES)
def test_preempting_who_frees_nothing_cascades(victim):
    """vllm#49674: who would free nothing, as all its blocks are shared, is asked last."""
    engine = make_engine(num_blocks=9, watermark=0.0, victim=victim, prefix_caching=True)
    first = engine.add(PROMPT[:8], greedy(12))
    for _ in range(2):
        engine.step()
    for _ in range(2):
        engine.fork(first)
    told = serve(engine)
    assert set(told.reasons.values()) == {FinishReason.LENGTH}
    assert sum(one.num_preemptions for one in told.metrics.values()) <= 6


def test_a_victim_that_was_scheduled_in_the_same_step_is_still_counted():
    """vllm#23347: its tokens were in the plan that it had left."""
    for policy in ("newest", "most_blocks", "fewest_outputs"):
        scheduler = make_scheduler(num_blocks=7, watermark=0.0, victim=policy)
        for index in range(3):
            add(scheduler, make_request(7, 9, request_id=index))
        while scheduler.has_unfinished:
            plan = scheduler.plan(0.0)
            running = scheduler.running.requests
            assert all(request in running for request in plan.requests)
            prefill = plan.num_prefill_tokens + plan.num_decode_tokens
            assert prefill == plan.lengths.sum() <= 512
            commit(scheduler, plan)
        assert scheduler.num_preemptions > 0


def test_the_request_behind_a_victim_is_skipped():
    """vllm#49097: an index was not shifted when an earlier entry left. With the least
    urgent first in the queue, its place is taken and all others are served."""
    scheduler = make_scheduler(num_blocks=9, watermark=0.0, scheduling="priority")
    for index, urgency in enumerate((2, 1, 0)):
        options = RequestOptions(priority=urgency)
        add(scheduler, make_request(8, 9, request_id=index, options=options))
    step(scheduler)
    for _ in range(3):
        plan = scheduler.plan(0.0)
        if scheduler.num_preemptions:
            break
        commit(scheduler, plan)
    assert set(slices(plan)) == {
        request.request_id for request in scheduler.running.requests
    }
    assert 2 in slices(plan)


def test_all_progress_is_lost_each_time_and_nobody_completes():
    """inference-sim#297, #963, #529: three livelocks. The oldest is never held up, and
    who was preempted often enough is exempt. All policies:
    test_swapping.py::test_every_policy_makes_progress_in_the_smallest_pool."""
    for preempt_every in (1, 2, 3):
        engine = make_engine(
            num_blocks=7, watermark=0.0, preempt_every=preempt_every, max_preemptions=4
        )
        for index in range(5):
            engine.add(tuple(range(20 * index + 1, 20 * index + 12)), greedy(12))
        told = serve(engine, most_steps=500)
        assert set(told.reasons.values()) == {FinishReason.LENGTH}


def test_sharing_makes_for_fewer_preemptions():
    """inference-sim#1167: 258 with, 437 without it."""

    def num_preemptions(prefix_caching):
        engine = make_engine(
            num_blocks=13, watermark=0.0, prefix_caching=prefix_caching, max_num_seqs=2
        )
        for index in range(12):
            engine.add((*PROMPT, index + 100), greedy(14))
        return sum(one.num_preemptions for one in serve(engine).metrics.values())

    assert num_preemptions(True) == 0 < num_preemptions(False)


def test_hits_among_the_free_blocks_are_counted_as_room():
    """vllm#6849: cached blocks without an owner leave the free ones when they are hit."""
    scheduler = make_scheduler(num_blocks=7, watermark=0.0, prefix_caching=True)
    add(scheduler, make_request(16, 1, request_id=0))
    step(scheduler)
    assert scheduler.allocator.usage(0).num_cached == 4
    add(scheduler, make_request(tuple(range(101, 109)), 9, request_id=1))
    step(scheduler)  # takes both blocks that are free
    add(scheduler, make_request(20, 1, request_id=2))
    # 4 hits and one new block: 5 of the 4 that are left
    assert set(slices(step(scheduler))) == {1}
    while scheduler.has_unfinished:
        step(scheduler)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("several", [{}, {"n": 3}, {"n": 2, "use_beam_search": True}])
def test_forced_preemption_with_swap_fails(several, every):
    """vllm#10685: so the whole harness runs under it, and swapped, too."""
    engine = make_engine(
        pressure="preempt_swap", host_blocks=20, preempt_every=every, max_preemptions=6
    )
    for index in range(3):
        engine.add(PROMPT[index : index + 9], greedy(8, **several))
    told = serve(engine)
    assert set(told.reasons.values()) == {FinishReason.LENGTH}
    assert sum(one.num_swaps for one in told.metrics.values()) > 0
    if "use_beam_search" not in several:
        for (request_id, sample), tokens in told.tokens.items():
            assert tokens == fake_completion(PROMPT[request_id : request_id + 9], 8, sample)


def test_the_last_request_has_no_room_and_the_scheduler_fails():
    """sglang#19881: pinned blocks take what it needs; it alone is given up."""
    engine = make_engine(num_blocks=7, prefix_caching=True, watermark=0.0)
    serve_one(engine, PROMPT)
    engine.add(PROMPT[:4], greedy(18))
    engine.step()
    engine.pin_prefix(PROMPT)
    told = serve(engine)
    assert list(told.reasons.values()) == [FinishReason.DROPPED_POOL_FULL]
    engine.unpin_prefix(PROMPT)
    assert serve_one(engine, PROMPT[4:8], 2).reason is FinishReason.LENGTH


def test_the_pool_of_a_window_is_too_small_by_one():
    """NVIDIA/TensorRT-LLM#15401: sized by the window alone, it deadlocked."""
    for window_blocks in range(2, 8):
        engine = make_engine(
            num_blocks=1 + window_blocks,
            windows=(8,),
            watermark=0.0,
            max_num_batched_tokens=4,
        )
        for index in range(3):
            engine.add(PROMPT[index : index + 6], greedy(30))
        told = serve(engine, most_steps=600)
        assert set(told.reasons.values()) <= {
            FinishReason.LENGTH,
            FinishReason.REJECTED_NEVER_FITS,
        }
        assert window_blocks < 4 or set(told.reasons.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize(
    "eviction", ["lru", "lfu", "fifo", "mru", "priority", "cost_aware"]
)
def test_heads_are_evicted_and_leave_tails_that_nobody_can_hit(eviction):
    """NVIDIA/Megatron-LM#5822, LMCache#1116, #4867, llm-d-inference-sim#709."""
    engine = make_engine(num_blocks=10, prefix_caching=True, eviction=eviction)
    serve_one(engine, PROMPT)
    usable = [16]
    for index in range(4):  # each takes one more block than is free
        pool = engine.scheduler.allocator.pools[0]
        taken = pool.allocate(pool.num_free + 1)
        pool.free(taken)
        prefixes = engine.scheduler.allocator.prefixes
        path = prefixes.cache.match(prefixes.root(RequestOptions()), _bytes(PROMPT))
        usable.append(4 * len(path))
        assert pool.num_idle == len(path), "an idle block that nobody can hit"
        assert usable[-1] == 16 - 4 * (index + 1)


def test_a_hit_does_not_refresh_its_place_in_the_order():
    """antonellof/ferrox#14: "LRU" that never reordered."""
    engine = make_engine(num_blocks=10, prefix_caching=True)
    serve_one(engine, PROMPT)
    serve_one(engine, tuple(range(101, 117)))
    assert serve_one(engine, PROMPT).num_cached_tokens == 15
    serve_one(engine, tuple(range(201, 213)))
    assert serve_one(engine, PROMPT).num_cached_tokens == 15


def test_each_step_of_a_beam_search_is_a_prefill():
    """sglang#3032, vllm#8726: forks happen in the decode path, so that each beam computes
    one token per step, and nothing twice."""
    engine = make_engine(num_blocks=65)
    engine.add(PROMPT, greedy(10, n=4, use_beam_search=True))
    told = serve(engine)
    assert sum(one.num_prefill_tokens for one in told.steps) == 16
    assert max(one.num_decode_tokens for one in told.steps) == 4
    assert len(told.steps) == 10


def test_copying_the_tokens_of_beams_dominates():
    """vllm#14426: histories are shared, so ten times the length takes about ten times as
    long, not a hundred. See also test_beam.py::test_a_long_search_shares_histories."""

    def duration_s(max_tokens):
        engine = make_engine(
            num_blocks=1 + 4 * max_tokens,
            block_size=16,
            max_context=16 + max_tokens,
            check_invariants=False,
        )
        engine.add(PROMPT, greedy(max_tokens, n=2, use_beam_search=True))
        start = time.process_time()
        while engine.has_unfinished:
            engine.step()
        return time.process_time() - start

    assert duration_s(400) < 60 * max(duration_s(40), 0.01)


def _bytes(tokens):
    return np.asarray(tokens, np.int32).tobytes()
