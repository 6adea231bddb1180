"""Requests with equal beginnings: what they share, what never, and how it is counted."""

import numpy as np
import pytest

from paxkv.request_options import Adapter, RequestOptions, Retention
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import fake_completion, make_engine
from tests.serving import check_partition
from tests.told import serve

ADAPTERS = tuple(Adapter(name="chat", version=version) for version in "12")
TWINS = {  # of a request without options, with the same tokens
    "adapter": {"adapter": ADAPTERS[0]},
    "salt": {"salt": "tenant"},
    "offset": {"position_offset": 16},
}


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)


def sharing(**settings):
    return make_engine(prefix_caching=True, adapters=ADAPTERS, **settings)


def serve_one(engine, prompt, max_tokens=2, **options):
    """Its metrics; its tokens are those of a cold run."""
    request_id = engine.add(prompt, greedy(max_tokens), options=RequestOptions(**options))
    told = serve(engine)
    tokens = told.tokens[request_id, 0]
    assert tokens == fake_completion(tuple(prompt), len(tokens))
    return told.metrics[request_id, 0]


# The worked example.

SHARED = tuple(token % 250 + 1 for token in range(4_992))  # 312 blocks of 16


def serve_hundred(options_of=lambda index: RequestOptions(), count=100, **settings):
    """Requests that share 4,992 tokens and have 8 of their own; the engine in the middle
    of their decoding, when each has one block of its own."""
    engine = sharing(
        block_size=16,
        num_blocks=1 + 312 * (1 if count == 100 else count) + count,
        max_context=5_120,
        max_num_seqs=count,
        max_num_batched_tokens=1 << 15,
        watermark=0.0,
        check_invariants=False,
        **settings,
    )
    for index in range(count):
        prompt = (*SHARED, *[index + 1] * 8)
        engine.add(prompt, greedy(4), options=options_of(index))
        if index == 0:
            engine.step()
    engine.step()
    return engine


def test_100_requests_that_share_4992_tokens_hold_312_blocks_once():
    engine = serve_hundred()
    pool, tables = engine.scheduler.allocator.pools[0], engine.scheduler.tables
    assert sum(count == 100 for count in pool.refcounts) == 312
    assert sum(count == 1 for count in pool.refcounts) == 100
    assert pool.num_free == 0
    rows = engine.scheduler.running.rows
    assert (
        tables.block_tables[0][rows, :312] == tables.block_tables[0][rows[0], :312]
    ).all()
    assert engine.scheduler.journal.num_copied_blocks == 0
    told = serve(engine)
    used = told.steps[0].partitions[0]
    assert used.token_states + used.tail == (312 + 100) * 16
    assert {one.num_cached_tokens for one in told.metrics.values()} == {0, 4_992}
    assert set(told.reasons.values()) == {FinishReason.LENGTH}
    assert engine.scheduler.admitting.num_hit_tokens == 99 * 4_992


@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_of_another_kind_shares_none_of_the_312_blocks(twin):
    engine = serve_hundred(
        lambda index: RequestOptions(**TWINS[twin] if index else {}), count=2
    )
    assert max(engine.scheduler.allocator.pools[0].refcounts) == 1
    assert engine.scheduler.allocator.usage(0).num_free == 0
    told = serve(engine)
    assert {one.num_cached_tokens for one in told.metrics.values()} == {0}


def test_after_new_weights_nothing_is_hit():
    """Another revision of the model under the same name."""
    engine = sharing()
    serve_one(engine, range(1, 17))
    assert serve_one(engine, range(1, 17)).num_cached_tokens == 15
    engine.scheduler.allocator.prefixes._model_key = (("revision", "2"),)
    assert serve_one(engine, range(1, 17)).num_cached_tokens == 0


def test_another_version_of_an_adapter_is_another_adapter():
    engine = sharing()
    serve_one(engine, range(1, 17), adapter=ADAPTERS[0])
    assert serve_one(engine, range(1, 17), adapter=ADAPTERS[1]).num_cached_tokens == 0
    assert serve_one(engine, range(1, 17), adapter=ADAPTERS[1]).num_cached_tokens == 15


# Hits.


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("length", range(1, 17))
def test_a_hit_gives_the_tokens_of_a_cold_run(length, chunk, granularity):
    """Whatever the two have in common, and however the pool is shuffled."""
    for seed in range(3):
        engine = sharing(
            shuffle_seed=seed,
            granularity=granularity,
            max_num_batched_tokens=chunk,
            poison=True,
        )
        first = tuple(range(1, 17))
        serve_one(engine, first, 6)
        metrics = serve_one(engine, (*first[:length], *[99] * (18 - length)), 6)
        assert metrics.num_cached_tokens == (
            length if granularity == "token" else length // 4 * 4
        )


@pytest.mark.parametrize("granularity", ["block", "token"])
def test_a_full_hit_computes_one_token_copies_nothing_and_writes_no_shared_block(
    granularity,
):
    engine = sharing(granularity=granularity)
    serve_one(engine, range(1, 17))
    executor, tables = engine.executor, engine.scheduler.tables
    written, write = [], executor._write
    executor._write = lambda pool, table, tokens, start: (
        written.append((start, len(tokens))),
        write(pool, table, tokens, start),
    )
    request_id = engine.add(range(1, 17), greedy(2))
    plan = engine.scheduler.plan(0.0)
    assert (plan.starts.tolist(), plan.lengths.tolist()) == ([15], [1])
    assert plan.moves == ()
    assert tables.first_write[plan.rows] == 16  # what is before goes to the null block
    assert len(tables.blocks(0, int(plan.rows[0]))) == 4
    engine.scheduler.commit(plan, executor.run(plan), 0.0)
    assert written == [(16, 0)]
    assert serve(engine).metrics[request_id, 0].num_cached_tokens == 15
    assert engine.scheduler.journal.num_copied_blocks == 0


def test_blocks_are_shared_while_their_producer_still_runs():
    engine = sharing()
    engine.add(range(1, 18), greedy(8))
    engine.step()
    engine.add(range(1, 18), greedy(8))
    engine.step()
    pool = engine.scheduler.allocator.pools[0]
    assert sorted(pool.refcounts, reverse=True)[:7] == [2, 2, 2, 2, 1, 1, 0]
    serve(engine)


@pytest.mark.parametrize(
    ("granularity", "num_cached", "num_copied"), [("block", 8, 0), ("token", 10, 1)]
)
def test_a_block_that_matches_in_part_is_copied_once(granularity, num_cached, num_copied):
    engine = sharing(granularity=granularity)
    serve_one(engine, range(1, 17))
    metrics = serve_one(engine, (*range(1, 11), 99, 98, 97))
    assert metrics.num_cached_tokens == num_cached
    assert engine.scheduler.journal.num_copied_blocks == num_copied


@pytest.mark.parametrize(("deduplicate", "num_used"), [(True, 4 + 2), (False, 8 + 2)])
def test_equal_blocks_that_two_compute_at_once(deduplicate, num_used):
    engine = sharing(deduplicate=deduplicate)
    for _ in range(2):
        engine.add(range(1, 17), greedy(4))
    engine.step()
    metrics = engine.step().metrics
    assert metrics.num_duplicate_blocks == (0 if deduplicate else 4)
    partition = metrics.partitions[0]
    assert partition.token_states + partition.tail == num_used * 4
    told = serve(engine)
    assert told.steps[-1].num_duplicate_blocks == (0 if deduplicate else 4)
    assert engine.scheduler.allocator.usage(0).num_cached == 4
    assert engine.scheduler.allocator.usage(0).num_duplicates == 0


# Reset, pins, retention.


def test_after_a_reset_nothing_is_hit_and_running_requests_go_on():
    engine = sharing()
    serve_one(engine, range(1, 17))
    request_id = engine.add(range(1, 17), greedy(6))
    engine.step()
    assert engine.reset_prefix_cache() == 0  # all are owned
    assert serve_one(engine, range(1, 17)).num_cached_tokens == 0
    assert request_id in engine.scheduler.ended
    assert engine.reset_prefix_cache() == 4
    assert engine.scheduler.allocator.usage(0).num_free == 16


def test_a_pinned_prefix_stays_whatever_comes_after():
    engine = sharing(num_blocks=9)
    serve_one(engine, range(1, 9))
    assert engine.pin_prefix(tuple(range(1, 9))) == 8
    for seed in range(5):
        serve_one(engine, range(100 + seed, 124 + seed), 1)
    assert serve_one(engine, range(1, 9)).num_cached_tokens == 7
    assert engine.unpin_prefix(tuple(range(1, 9))) == 8
    for seed in range(2):
        serve_one(engine, range(200 + seed, 231 + seed), 1)
    assert serve_one(engine, range(1, 9)).num_cached_tokens == 0


def test_what_pins_leave_no_room_for_ends_with_a_reason():
    engine = sharing(num_blocks=5)
    serve_one(engine, range(1, 9))
    engine.pin_prefix(tuple(range(1, 9)))
    engine.add(range(50, 62), greedy(2))
    assert list(serve(engine).reasons.values()) == [FinishReason.DROPPED_POOL_FULL]


@pytest.mark.parametrize(("priority", "survives"), [(90, True), (35, False)])
def test_a_priority_keeps_tokens_longer_than_their_age_would(priority, survives):
    engine = sharing(num_blocks=9, eviction="priority")
    wish = Retention(priority=priority, end=8)
    serve_one(engine, range(1, 9), 1, retention=(wish,))
    serve_one(engine, range(101, 117), 1)
    serve_one(engine, range(201, 221), 1)
    found = serve_one(engine, range(1, 9), 1).num_cached_tokens
    assert found == (7 if survives else 0)


@pytest.mark.parametrize("retained", [("completed",), ("cancelled",), ("preempted",), ()])
def test_only_the_outcomes_that_the_policy_names_stay_cached(retained):
    engine = sharing(retain=retained, preempt_every=3, max_preemptions=1, block_size=4)
    serve_one(engine, range(1, 13), 1)
    assert _num_found(engine, range(1, 13)) == (12 if retained == ("completed",) else 0)
    cancelled = engine.add(range(101, 113), greedy(8))
    engine.step()
    engine.abort(cancelled)
    assert _num_found(engine, range(101, 113)) == (12 if retained == ("cancelled",) else 0)
    engine.add(range(201, 213), greedy(8))
    while not engine.scheduler.num_preemptions:
        engine.step()
    told = serve(engine)
    (metrics,) = [one for one in told.metrics.values() if one.num_preemptions]
    assert (metrics.num_recomputed_tokens < 12) == (retained == ("preempted",))


def _num_found(engine, tokens):
    """Of a prompt that is looked up, not served."""
    prefixes = engine.scheduler.allocator.prefixes
    root = prefixes.root(RequestOptions())
    known = np.asarray(tuple(tokens), np.int32).tobytes()
    return 4 * len(prefixes.cache.match(root, known))


# Counting.


def test_tokens_computed_again_are_no_hits():
    """vllm#25780: on random prompts, preemptions alone made a hit rate of 32 %."""
    engine = sharing(num_blocks=13, watermark=0.0, preempt_every=2, max_preemptions=5)
    rng = np.random.default_rng(3)
    for _ in range(6):
        engine.add(rng.integers(1, 251, 12).tolist(), greedy(10))
    told = serve(engine)
    assert sum(one.num_preemptions for one in told.metrics.values()) > 10
    assert {one.num_cached_tokens for one in told.metrics.values()} == {0}
    assert engine.scheduler.admitting.num_hit_tokens == 0
    assert engine.scheduler.admitting.num_looked_up_tokens == 6 * 12


def test_a_look_up_counts_once_however_often_admission_is_tried():
    engine = sharing(num_blocks=9, watermark=0.0)
    serve_one(engine, range(1, 9), 1)
    engine.add(range(101, 117), greedy(12))
    engine.step()
    engine.add(range(1, 13), greedy(6))  # finds no room for many steps
    told = serve(engine)
    waited = sum(step.num_waiting == 1 for step in told.steps)
    assert waited > 5
    admitting = engine.scheduler.admitting
    assert admitting.num_looked_up_tokens == 8 + 16 + 12
    assert admitting.num_hit_tokens in (0, 8)
    assert admitting.num_hit_tokens == sum(
        one.num_cached_tokens for one in told.metrics.values()
    )


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize("granularity", ["block", "token"])
def test_used_cached_and_free_are_the_total_at_every_step(granularity, deduplicate):
    engine = sharing(
        num_blocks=17,
        granularity=granularity,
        deduplicate=deduplicate,
        watermark=0.0,
        preempt_every=4,
        max_preemptions=3,
    )
    rng = np.random.default_rng(0)
    for _ in range(12):
        prompt = (*range(1, 1 + int(rng.integers(1, 14))), *rng.integers(1, 9, 4).tolist())
        engine.add(prompt, greedy(int(rng.integers(1, 9)), n=int(rng.integers(1, 4))))
    told = serve(engine)
    for step in told.steps:
        check_partition(step.partitions[0], 16 * 4)
    assert any(step.num_duplicate_blocks for step in told.steps) is not deduplicate
    assert any(step.partitions[0].cached for step in told.steps)
