"""Sequences that give way to the host and come back; and that all go on to their end."""

import itertools

import pytest

from paxkv.moves import SwapIn, SwapOut
from paxkv.policies.admission import ADMISSION_POLICIES
from paxkv.policies.pressure import PRESSURE_POLICIES, SWAPPING
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import FakeExecutor, fake_completion, make_engine
from tests.told import serve

PROMPT = tuple(range(1, 11))  # two blocks of 4, and half of one


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)


def record_moves(engine, kind):
    """Of all plans from now on, in order; the list fills as the engine runs."""
    moves, move = [], engine.executor._move

    def recording(one):
        if isinstance(one, kind):
            moves.append(one)
        move(one)

    engine.executor._move = recording
    return moves


def give_way(engine, *, swaps=True):
    """The newest request loses its place."""
    engine.scheduler.preempting._give_way(
        engine.scheduler.running.candidates()[-1], swaps=swaps
    )


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(
    "several", [{}, {"n": 3}, {"n": 3, "use_beam_search": True}], ids=["one", "n", "beams"]
)
def test_a_request_is_swapped_whole_and_its_shared_blocks_once(several, prefix_caching):
    calm = make_engine(prefix_caching=prefix_caching)
    calm.add(PROMPT, greedy(6, **several))
    expected = serve(calm).tokens
    engine = make_engine(host_blocks=16, prefix_caching=prefix_caching)
    engine.add(PROMPT, greedy(6, **several))
    for _ in range(3):
        engine.step()
    scheduler = engine.scheduler
    rows = scheduler.running.rows.tolist()
    tables = [scheduler.tables.blocks(0, row) for row in rows]
    distinct = set(itertools.chain(*tables))
    assert len(distinct) < sum(map(len, tables)) or not several
    out, back = record_moves(engine, SwapOut), record_moves(engine, SwapIn)
    give_way(engine)
    assert scheduler.running.swapper.host.num_free(0) == 16 - len(distinct)
    assert len(scheduler.running) == 0
    told = serve(engine)
    assert {move.block for move in out} == distinct and len(out) == len(distinct)
    assert len(back) == len(distinct)
    assert {move.host_slot for move in back} == {move.host_slot for move in out}
    assert told.tokens.keys() == expected.keys()
    assert all(expected[one][-3:] == told.tokens[one][-3:] for one in expected)
    assert {one.num_recomputed_tokens for one in told.metrics.values()} == {0}
    assert scheduler.running.swapper.host.num_free(0) == 16


def test_a_host_without_room_for_all_takes_none():
    engine = make_engine(host_blocks=2)
    engine.add(PROMPT, greedy(6))
    engine.step()
    out = record_moves(engine, SwapOut)
    give_way(engine)
    told = serve(engine)
    assert out == []
    (metrics,) = told.metrics.values()
    assert (metrics.num_swaps, metrics.num_recomputed_tokens) == (0, 10)
    assert told.tokens[0, 0] == fake_completion(PROMPT, 6)[1:]


def test_what_comes_back_is_what_the_host_has():
    """If its bytes were overwritten meanwhile, the tokens must show it."""
    engine = make_engine(host_blocks=16)
    engine.add(PROMPT, greedy(6))
    engine.step()
    give_way(engine)
    move = engine.executor._move

    def overwriting(one):
        if isinstance(one, SwapIn):
            engine.executor.host[one.group, one.host_slot][:] = 5
        move(one)

    engine.executor._move = overwriting
    (tokens,) = serve(engine).tokens.values()
    assert len(tokens) == 5
    assert not set(tokens) & set(fake_completion(PROMPT, 6))


def test_a_victim_of_the_plan_under_way_takes_no_block_that_is_not_filled():
    """Its next block was allocated before a newer one needed room."""
    engine = make_engine(
        block_size=1,
        num_blocks=13,
        host_blocks=12,
        pressure="preempt_swap",
        victim="most_blocks",
        watermark=0.0,
        max_context=12,
    )
    out = record_moves(engine, SwapOut)
    for first, length in ((1, 2), (101, 6), (201, 2)):
        engine.add(range(first, first + length), greedy(4))
    engine.step()
    engine.step()
    assert engine.scheduler.num_preemptions == 1
    assert len(out) == 6
    told = serve(engine)
    assert told.metrics[1, 0].num_swaps == 1
    assert told.tokens[1, 0] == fake_completion(tuple(range(101, 107)), 4)[1:]


def test_a_beam_search_that_was_swapped_before_it_forked_finds_its_rows():
    engine = make_engine(
        host_blocks=16,
        num_blocks=40,
        max_num_seqs=3,
        max_num_batched_tokens=8,
        scheduling="shortest_prefill",  # others may go before it
    )
    search = engine.add(PROMPT, greedy(4, n=3, use_beam_search=True))
    engine.step()  # a part of the prompt: one sequence so far
    give_way(engine)
    for first in (101, 121):
        engine.add(range(first, first + 3), greedy(9))
    told = serve(engine)
    assert set(told.reasons.values()) == {FinishReason.LENGTH}
    assert len([one for one in told.reasons if one[0] == search]) == 3


def test_a_sample_that_ends_on_the_host_leaves_the_others_their_blocks():
    engine = make_engine(host_blocks=16)
    request_id = engine.add(PROMPT, greedy(6, n=3))
    for _ in range(3):
        engine.step()
    give_way(engine)
    engine.abort(request_id, sample_index=1)
    told = serve(engine)
    for index in (0, 2):
        assert told.tokens[request_id, index][-2:] == fake_completion(PROMPT, 6, index)[-2:]
    assert engine.scheduler.running.swapper.host.num_free(0) == 16


def test_swapping_back_waits_for_room_and_the_oldest_goes_on():
    engine = make_engine(
        num_blocks=7, host_blocks=16, pressure="preempt_swap", watermark=0.0
    )
    for first in (1, 101):
        engine.add(range(first, first + 10), greedy(12))
    told = serve(engine)
    assert told.metrics[0, 0].num_swaps == 0
    assert told.metrics[1, 0].num_swaps > 0
    assert told.metrics[1, 0].num_recomputed_tokens == 0
    for request, first in ((0, 1), (1, 101)):
        assert told.tokens[request, 0] == fake_completion(
            tuple(range(first, first + 10)), 12
        )


@pytest.mark.parametrize("admission", sorted(ADMISSION_POLICIES))
@pytest.mark.parametrize("pressure", sorted(PRESSURE_POLICIES))
@pytest.mark.parametrize("victim", sorted(VICTIM_POLICIES))
def test_every_policy_makes_progress_in_the_smallest_pool(victim, pressure, admission):
    """inference-sim#297, #963, #529: none completes, since all progress is lost each time.

    The pool holds the longest request, and nothing besides.
    """
    for max_preemptions, several in ((0, {"n": 2}), (2, {"n": 2}), (100, {})):
        engine = make_engine(
            num_blocks=7,
            max_context=24,
            watermark=0.0,
            victim=victim,
            pressure=pressure,
            admission=admission,
            max_preemptions=max_preemptions,
            host_blocks=6 if pressure in SWAPPING else 0,
            swap_s_per_block=0.1,
            recompute_s_per_token=1.0,
            check_invariants=False,
        )
        prompts = [tuple(range(20 * i + 1, 20 * i + 12)) for i in range(4)]
        for prompt in prompts:
            engine.add(prompt, greedy(12, **several))
        told = serve(engine, most_steps=1_500)
        if pressure != "reject":
            assert set(told.reasons.values()) == {FinishReason.LENGTH}
        for (request, index), tokens in told.tokens.items():
            assert tokens == fake_completion(prompts[request], len(tokens), index)


def test_a_fake_executor_keeps_what_it_was_told():
    """So that the tests above see a wrong move."""
    executor = FakeExecutor(3, 4)
    executor.pools[0, 1] = 7
    executor._move(SwapOut(group=0, block=1, host_slot=0))
    executor.pools[0, 1] = 9
    executor._move(SwapIn(group=0, host_slot=0, block=2))
    assert executor.pools[0, 2].tolist() == [7] * 4
