"""Cached blocks that leave the device for the host, and come back on a hit."""

import numpy as np
import pytest

from paxkv.cache_keys import token_bytes
from paxkv.moves import CopyBlock, Load, Poison, SwapIn, SwapOut
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.tiers.disk_keys import child_digest
from paxkv.tiers.host_tier import WRITE_POLICIES
from paxkv.types import FinishReason
from tests.fakes import fake_completion, make_engine, make_scheduler
from tests.serving import Serving
from tests.told import serve

PROMPT = tuple(range(1, 17))  # four blocks of 4
OTHERS = [tuple(range(20 * i + 20, 20 * i + 36)) for i in range(3)]


def tiered(**settings):
    """A pool of 5 blocks: each prompt of four evicts the one before."""
    return make_engine(
        **{"num_blocks": 6, "prefix_caching": True, "host_blocks": 32, **settings}
    )


def record_plans(engine):
    """Of all plans from now on: their moves, in order."""
    plans, run = [], engine.executor.run

    def recording(plan):
        plans.append(plan.moves)
        return run(plan)

    engine.executor.run = recording
    return plans


def serve_one(engine, prompt, max_tokens=2):
    """Its metrics; its tokens are those of a cold run."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request_id = engine.add(prompt, sampling)
    told = serve(engine)
    assert told.tokens[request_id, 0] == fake_completion(tuple(prompt), max_tokens)
    return told.metrics[request_id, 0]


def count(plans, kind):
    return sum(isinstance(move, kind) for moves in plans for move in moves)


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize("poison", [True, False])
@pytest.mark.parametrize("host_write", WRITE_POLICIES)
def test_what_was_evicted_comes_back_from_the_host(host_write, poison, granularity):
    engine = tiered(host_write=host_write, poison=poison, granularity=granularity)
    serve_one(engine, PROMPT)
    if host_write == "write_through_selective":
        serve_one(engine, PROMPT)  # worth it from the first hit on
    serve_one(engine, OTHERS[0])
    plans = record_plans(engine)
    assert serve_one(engine, PROMPT).num_cached_tokens == 15
    assert count(plans, SwapIn) >= 3
    assert engine.scheduler.allocator.prefixes.cache.host.num_cached(0) > 0


def test_without_a_host_it_is_computed_again():
    engine = tiered(host_blocks=0)
    serve_one(engine, PROMPT)
    serve_one(engine, OTHERS[0])
    assert serve_one(engine, PROMPT).num_cached_tokens < 8


@pytest.mark.parametrize(
    ("host_write", "num_stored"),
    [
        ("write_back", (0, 0)),
        ("write_through", (4, 4)),
        ("write_through_selective", (0, 4)),
    ],
)
def test_when_the_copies_are_made(host_write, num_stored):
    """After the first request, and after one that hits its blocks."""
    engine = tiered(num_blocks=17, host_write=host_write)
    plans = record_plans(engine)
    found = []
    for _ in range(2):
        serve_one(engine, PROMPT)
        serve_one(engine, (99,))  # moves go with the next plan
        found.append(count(plans, SwapOut))
    assert tuple(found) == num_stored


def test_a_block_that_is_only_planned_to_be_stored_is_no_hit():
    """Two phases: the plan that fills the slot must have run."""
    engine = tiered()
    serve_one(engine, PROMPT)
    scheduler = engine.scheduler
    prefixes, host = scheduler.allocator.prefixes, scheduler.allocator.prefixes.cache.host
    sampling = SamplingParams(max_tokens=1)
    engine.add(OTHERS[0], sampling)
    plan = scheduler.plan(0.0)  # evicts PROMPT's blocks
    assert count([plan.moves], SwapOut) >= 3
    waiting = engine.add(PROMPT, sampling)
    (request,) = scheduler.waiting
    assert request.request_id == waiting
    before = prefixes.find(request).num_tokens
    scheduler.commit(plan, engine.executor.run(plan), 0.0)
    assert before == 4 < prefixes.find(request).num_tokens == 16
    assert host.num_cached(0) >= 3
    serve(engine)


def fills(move):
    """Blocks whose content a move replaces."""
    match move:
        case CopyBlock(dst=block) | SwapIn(block=block) | Load(block=block):
            return [block]
        case Poison(blocks=blocks):
            return list(blocks)
    return []


def served_by_a_small_host(reorder=lambda moves: moves, **settings):
    """Prompts with common beginnings, again and again, through tiers that are too small."""
    engine = tiered(
        poison=True, host_blocks=6, pressure="preempt_swap", watermark=0.0, **settings
    )
    plans, run, move = [], engine.executor.run, engine.executor._move
    pending = []

    def running(plan):
        plans.append(plan.moves)
        pending[:] = reorder(list(plan.moves))
        for one in pending:
            move(one)
        return run(plan)

    engine.executor.run = running
    engine.executor._move = lambda one: None  # done by `running`
    rng = np.random.default_rng(5)
    prompts = {}
    for _ in range(12):
        prompt = (*PROMPT[: int(rng.integers(1, 13))], *rng.integers(1, 9, 2).tolist())
        request_id = engine.add(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
        prompts[request_id] = prompt
    told = serve(engine)
    wrong = sum(
        told.tokens[request_id, 0] != fake_completion(prompt, 4)
        for request_id, prompt in prompts.items()
    )
    return wrong, plans


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize("host_write", WRITE_POLICIES)
def test_a_block_is_not_filled_before_its_copy_is_made(host_write, granularity):
    """TensorRT-LLM#8813: with the host cache on, tokens of other prompts appeared."""
    wrong, plans = served_by_a_small_host(host_write=host_write, granularity=granularity)
    assert wrong == 0
    stored = 0
    for moves in plans:
        filled = set()
        for move in moves:
            if isinstance(move, SwapOut):
                stored += 1
                assert move.block not in filled, "the copy has another's content"
            filled.update(fills(move))
    assert stored > 5


def test_copies_that_come_too_late_show_in_the_tokens():
    """So that the test above would see the fault."""

    def stores_last(moves):
        return sorted(moves, key=lambda move: isinstance(move, SwapOut))

    try:
        wrong, _ = served_by_a_small_host(stores_last)
    except AssertionError as error:
        assert "K/V is read that nobody wrote" in str(error)
    else:
        assert wrong > 0


def test_a_full_host_gives_up_its_oldest_and_hits_end_there():
    engine = tiered(host_blocks=4)
    serve_one(engine, PROMPT)
    for prompt in OTHERS:
        serve_one(engine, prompt)
    assert serve_one(engine, PROMPT).num_cached_tokens == 0
    host = engine.scheduler.allocator.prefixes.cache.host
    assert host.num_free(0) + host.num_cached(0) == 4


def test_swapped_sequences_come_before_cached_blocks():
    engine = tiered(num_blocks=9, host_blocks=4, pressure="preempt_swap", max_context=16)
    serve_one(engine, PROMPT[:12], 1)
    engine.add(OTHERS[0][:12], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    scheduler = engine.scheduler
    host = scheduler.running.swapper.host
    scheduler.preempting._give_way(scheduler.running.candidates()[-1], swaps=True)
    assert host.num_free(0) + host.num_cached(0) == 1
    (metrics,) = serve(engine).metrics.values()
    assert metrics.num_swaps == 1
    assert host.num_free(0) + host.num_cached(0) == 4


@pytest.mark.parametrize("num_blocks", [4, 5, 9])
def test_what_the_disk_has_is_taken_only_if_it_finds_room(num_blocks):
    """K/V from disk come whole, also of layers that hold only a window."""
    settings = dict(
        prefix_caching=True,
        block_size=2,
        num_blocks=num_blocks,
        windows=(3,),
        host_blocks=4,
        max_num_batched_tokens=1,
        watermark=0.0,
    )
    served = Serving(settings, has_disk=True)
    digest = served.scheduler.allocator.prefixes.root(RequestOptions()).digest
    for start in range(0, 8, 2):
        tokens = PROMPT[start : start + 2]
        digest = child_digest(digest, token_bytes(tokens))
        served.disk.blocks[0, digest] = np.asarray(tokens, np.int32)
    served.add(PROMPT[:8], SamplingParams(max_tokens=4, ignore_eos=True), RequestOptions())
    served.finish()
    (reason,) = served.finishes.values()
    assert reason is FinishReason.LENGTH
    assert (served.scheduler.admitting.num_hit_tokens > 0) == (num_blocks > 4)


@pytest.mark.parametrize("pressure", ["preempt_swap", "swap_or_recompute"])
@pytest.mark.parametrize(("num_blocks", "longest"), [(17, 16), (6, 5)])
def test_a_host_smaller_than_one_sequence_is_refused(pressure, num_blocks, longest):
    settings = {"pressure": pressure, "num_blocks": num_blocks, "swap_s_per_block": 0.1}
    with pytest.raises(ValueError) as refused:
        make_scheduler(host_blocks=longest - 1, **settings)
    message = str(refused.value)
    assert f"host_blocks={longest - 1} cannot hold one sequence" in message
    assert f"raise host_blocks to ≥ {longest}" in message
    make_scheduler(host_blocks=longest, **settings)
