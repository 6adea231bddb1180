"""Faults that users of other systems met: leaks, double frees, aborts, wrong counts."""

import gc
import weakref

import numpy as np
import pytest

from paxkv.block_pool import NULL_BLOCK, BlockPool, OutOfBlocks
from paxkv.invariants import check_invariants
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import make_engine
from tests.serving import check_partition
from tests.told import serve

PROMPT = tuple(range(1, 17))


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)


def serve_many(engine, count, seed=0):
    """Requests with common beginnings, some of several samples, some aborted."""
    rng = np.random.default_rng(seed)
    ids, aborted = [], 0
    for _ in range(count):
        prompt = (*PROMPT[: int(rng.integers(1, 17))], *rng.integers(1, 9, 2).tolist())
        several = {"n": int(rng.integers(1, 3))}
        ids.append(engine.add(prompt, greedy(int(rng.integers(1, 8)), **several)))
        if rng.random() < 0.1:
            aborted += engine.abort(ids[int(rng.integers(len(ids)))])
        while len(engine.scheduler.waiting) > 4:
            engine.step()
    return serve(engine), aborted


def test_usage_grows_beyond_the_pool():
    """xLLM-AI/xllm#828: 135 % used, for counts never dropped after a publication."""
    engine = make_engine(prefix_caching=True, num_blocks=33, watermark=0.0)
    told, _ = serve_many(engine, 60)
    for one in told.steps:
        check_partition(one.partitions[0], 32 * 4)
    assert engine.scheduler.allocator.pools[0].refcounts == [0] * 33
    assert engine.scheduler.allocator.usage(0).num_available == 32


def test_one_block_per_request_never_returns():
    """kekzl/imp#1115: unseen in short tests. 2,000 requests, then all blocks are free."""
    engine = make_engine(
        prefix_caching=True,
        granularity="token",
        num_blocks=60,
        max_num_seqs=16,
        check_invariants=False,
        preempt_every=31,
    )
    _, aborted = serve_many(engine, 2_000)
    assert aborted > 0
    check_invariants(engine.scheduler)
    engine.reset_prefix_cache()
    assert engine.scheduler.allocator.usage(0).num_free == 59
    assert engine.scheduler.tables.num_free_rows == 16


def test_eviction_takes_a_block_from_a_running_sequence():
    """Avarok-Cybersecurity/atlas#373: it set the count of an owned block to 0."""
    engine = make_engine(prefix_caching=True)
    engine.add(PROMPT, greedy(8))
    engine.step()
    (row,) = engine.scheduler.running.rows.tolist()
    blocks = engine.scheduler.tables.blocks(0, row)
    pool = engine.scheduler.allocator.pools[0]
    taken = pool.allocate(pool.num_available)  # all that can be evicted
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    engine.reset_prefix_cache()
    assert [pool.refcounts[block] for block in blocks] == [1] * len(blocks)
    pool.free(taken)
    assert set(serve(engine).reasons.values()) == {FinishReason.LENGTH}


def test_a_block_named_twice_in_one_free_is_queued_twice():
    """ai-dynamo/dynamo#13398: it is freed once and the second time refused, or has two
    owners and is freed with the second."""
    pool = BlockPool(5)
    (block,) = pool.allocate(1)
    with pytest.raises(ValueError, match=f"cannot free block={block}"):
        pool.free([block, block])
    assert sorted(pool.free_blocks) == [1, 2, 3, 4]
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.free([block, block])
    assert sorted(pool.free_blocks) == [1, 2, 3, 4]


@pytest.mark.parametrize("block", [NULL_BLOCK, 3, 5, -1])
def test_a_bad_free_shows_only_later(block):
    """ModelEngine UCM#1053, vllm-ascend#15990: the null block, a free one, none at all."""
    pool = BlockPool(5)
    pool.allocate(2)
    with pytest.raises(ValueError, match=f"cannot free block={block}"):
        pool.free([block])
    assert sorted(pool.free_blocks) == [3, 4]


def test_nodes_and_blocks_keep_each_other_alive():
    """NVIDIA/TensorRT-LLM#19242: with no collector of cycles, that is a leak."""
    gc.collect()
    gc.disable()
    try:
        engine = make_engine(prefix_caching=True)
        engine.add(PROMPT, greedy(2))
        serve(engine)
        nodes = list(engine.scheduler.allocator.prefixes.cache.nodes())
        engine.reset_prefix_cache()
        assert len(nodes) == 4
        # dropped nodes name neither a parent nor blocks, and no pool names them
        assert all(node.parent is None and not any(node.blocks) for node in nodes)
        assert set(engine.scheduler.allocator.pools[0].node_of) == {None}
        del nodes
        alive = weakref.ref(engine.scheduler)
        assert alive() is not None
    finally:
        gc.enable()


def test_shared_blocks_count_twice_as_evictable():
    """sglang#35270: 5 pages too many, and an idle check that killed the server."""
    engine = make_engine(prefix_caching=True)
    for _ in range(3):
        engine.add((*PROMPT, 99), greedy(3))
        engine.step()
    serve(engine)
    usage = engine.scheduler.allocator.usage(0)
    assert usage.num_cached == 4
    assert usage.num_free + usage.num_cached == 16


def test_two_paths_free_what_a_request_holds():
    """sgl-project/sglang-jax#982: it ends in the step in which it is aborted."""
    engine = make_engine(prefix_caching=True)
    request_id = engine.add(PROMPT, greedy(1))
    engine.step()
    assert not engine.abort(request_id)
    assert engine.scheduler.tables.num_free_rows == engine.scheduler.tables.num_rows
    check_invariants(engine.scheduler)


def test_a_refused_admission_keeps_its_row():
    """sglang#16067: a slot was taken before the allocation failed."""
    engine = make_engine(num_blocks=7, watermark=0.0, prefix_caching=True)
    engine.add(PROMPT, greedy(6))
    engine.step()
    engine.add(tuple(range(101, 117)), greedy(6))
    for _ in range(3):
        engine.step()
        assert engine.scheduler.tables.num_free_rows == engine.scheduler.tables.num_rows - 1
        check_invariants(engine.scheduler)
    serve(engine)


def test_the_integrity_check_does_not_look_at_the_tree():
    """mini-sglang#149: it was a no-op. A damage of each kind must be found."""

    def damaged(damage):
        engine = make_engine(prefix_caching=True)
        engine.add(PROMPT, greedy(2))
        serve(engine)
        check_invariants(engine.scheduler)
        prefixes = engine.scheduler.allocator.prefixes
        damage(prefixes.cache.match(prefixes.root(RequestOptions()), _known()), prefixes)
        with pytest.raises(AssertionError):
            check_invariants(engine.scheduler)

    damaged(lambda path, prefixes: setattr(path[1], "key", b"another"))
    damaged(lambda path, prefixes: setattr(path[1], "depth", 7))
    damaged(lambda path, prefixes: path[2].blocks.__setitem__(0, path[0].blocks[0]))
    damaged(lambda path, prefixes: path[3].is_idle.__setitem__(0, False))
    damaged(lambda path, prefixes: prefixes.cache.pools[0].refcounts.__setitem__(1, 1))
    damaged(lambda path, prefixes: prefixes.cache.pools[0]._free.pop())


def _known():
    return np.asarray(PROMPT, np.int32).tobytes()


def test_samples_of_an_aborted_request_go_on():
    """vllm#14326: the log said aborted, the sequences ran on, the map never shrank."""
    engine = make_engine(prefix_caching=True)
    request_id = engine.add(PROMPT, greedy(9, n=3))
    for _ in range(3):
        engine.step()
    assert engine.abort(request_id)
    assert len(engine.scheduler.running) == len(engine.scheduler.waiting) == 0
    assert not engine.scheduler.has_unfinished
    assert engine.scheduler.allocator.pools[0].refcounts == [0] * 17
    assert set(serve(engine).reasons.values()) == {FinishReason.ABORTED}


def test_an_abort_before_the_last_step_is_told_as_success():
    """vllm#29987: whoever aborts first has aborted it."""
    engine = make_engine()
    request_id = engine.add(PROMPT, greedy(3))
    engine.step()
    engine.step()
    engine.abort(request_id)  # its third and last token was never computed
    assert serve(engine).reasons == {(request_id, 0): FinishReason.ABORTED}


@pytest.mark.parametrize("num_steps", range(4))
def test_what_a_look_up_held_leaks_with_the_abort(num_steps):
    """vllm#44100, #35931: nothing is held for who only looked."""
    engine = make_engine(prefix_caching=True, num_blocks=9, host_blocks=8, watermark=0.0)
    engine.add(PROMPT, greedy(1))
    serve(engine)
    engine.add(tuple(range(101, 125)), greedy(6))
    request_id = engine.add((*PROMPT, 1, 2), greedy(4))
    for _ in range(num_steps):
        engine.step()
    engine.abort(request_id)
    serve(engine)
    host = engine.scheduler.allocator.prefixes.cache.host
    assert engine.scheduler.allocator.usage(0).num_available == 8
    assert host.num_free(0) + host.num_cached(0) == 8


def test_recomputing_after_a_preemption_counts_as_a_hit():
    """vllm#25780: 32 % on random data, where 0.2 % was true."""
    engine = make_engine(prefix_caching=True, num_blocks=13, watermark=0.0, preempt_every=2)
    rng = np.random.default_rng(1)
    for _ in range(4):
        engine.add(rng.integers(1, 251, 12).tolist(), greedy(8))
    told = serve(engine)
    assert sum(one.num_preemptions for one in told.metrics.values()) > 5
    assert engine.scheduler.admitting.num_hit_tokens == 0


def test_a_request_that_is_tried_again_is_counted_again():
    """vllm#43736, torch-spyre/sendnn-inference#1030: once per try, N times in all."""
    engine = make_engine(prefix_caching=True, num_blocks=9, watermark=0.0)
    engine.add(PROMPT, greedy(12))
    engine.add(tuple(range(101, 117)), greedy(2))
    told = serve(engine)
    assert sum(one.num_waiting > 0 for one in told.steps) > 3
    assert engine.scheduler.admitting.num_looked_up_tokens == 32
