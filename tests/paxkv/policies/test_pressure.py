import pytest

from paxkv.policies.pressure import (
    PRESSURE_POLICIES,
    SWAPPING,
    Relief,
    RelocationCosts,
    paper,
    preempt_recompute,
    preempt_swap,
    reject,
    swap_or_recompute,
    wait,
)
from paxkv.policies.victim import Candidate
from paxkv.sequence_tables import SequenceTables
from paxkv.types import FinishReason
from tests.fakes import fake_completion, make_engine, make_request, make_scheduler
from tests.scheduling import add, commit, slices, step


class FourBlocks:
    def num_freed_by(self, rows):
        return 4


def victim(num_computed=10, num_sequences=1):
    tables = SequenceTables(num_sequences, 64, (16,))
    tables.num_computed[0] = num_computed
    requests = [make_request(5)] * num_sequences
    return Candidate(requests, list(range(num_sequences)), FourBlocks(), tables)


@pytest.mark.parametrize(
    ("policy", "relief"),
    [
        (reject, Relief.DROP),
        (wait, Relief.WAIT),
        (preempt_recompute, Relief.RECOMPUTE),
        (preempt_swap, Relief.SWAP),
    ],
)
def test_plain_policies_always_do_the_same(policy, relief):
    costs = RelocationCosts(swap_s_per_block=1.0, recompute_s_per_token=1.0)
    assert policy(victim(), RelocationCosts()) is relief
    assert policy(victim(), costs) is relief


@pytest.mark.parametrize(
    ("swap_s_per_block", "relief"),
    [(2.4, Relief.SWAP), (2.5, Relief.RECOMPUTE), (2.6, Relief.RECOMPUTE)],
)
def test_the_cheaper_way_is_taken(swap_s_per_block, relief):
    """4 blocks out and in again against 10 tokens of 1 s."""
    costs = RelocationCosts(swap_s_per_block=swap_s_per_block, recompute_s_per_token=1.0)
    assert swap_or_recompute(victim(), costs) is relief


def test_the_paper_swaps_who_has_several_sequences():
    assert paper(victim(), RelocationCosts()) is Relief.RECOMPUTE
    assert paper(victim(num_sequences=2), RelocationCosts()) is Relief.SWAP


def test_without_measured_costs_it_recomputes():
    assert swap_or_recompute(victim(), RelocationCosts()) is Relief.RECOMPUTE


PROMPTS = (tuple(range(1, 9)), tuple(range(21, 29)), tuple(range(41, 49)))


def serve(pressure, **settings):
    """Three requests in a pool for two: what each generated, why it ended, the engine."""
    engine = make_engine(
        num_blocks=7, max_context=32, watermark=0.0, pressure=pressure, **settings
    )
    tokens, reasons = {i: [] for i in range(3)}, {}
    for i, prompt in enumerate(PROMPTS):
        engine.add(prompt, make_request(1, 12).sampling, request_id=i)
    for _ in range(200):
        if not engine.has_unfinished:
            break
        for update in engine.step().updates:
            tokens[update.request_id].extend(update.new_token_ids)
            if update.finish is not None:
                reasons[update.request_id] = update.finish.reason
    usage = engine.scheduler.allocator.usage(0)
    assert usage.num_free == usage.num_blocks - 1
    return {i: tuple(ids) for i, ids in tokens.items()}, reasons, engine.scheduler


@pytest.mark.parametrize("pressure", PRESSURE_POLICIES)
def test_what_is_served_is_the_same_under_every_policy(pressure):
    costs = {"swap_s_per_block": 1e-4, "recompute_s_per_token": 1e-4}
    host = {"host_blocks": 16, **costs} if pressure in SWAPPING else {}
    tokens, reasons, scheduler = serve(pressure, **host)
    if pressure == "reject":
        assert FinishReason.LENGTH in reasons.values()
    else:
        assert set(reasons.values()) == {FinishReason.LENGTH}
    assert len(reasons) == 3
    for i, prompt in enumerate(PROMPTS):
        assert tokens[i] == fake_completion(prompt, len(tokens[i]))
        assert len(tokens[i]) == 12 or reasons[i] is not FinishReason.LENGTH
    assert scheduler.num_preemptions == 0 or pressure != "reject"


def test_reject_gives_up_a_victim_and_refuses_who_finds_no_room():
    tokens, reasons, _ = serve("reject")
    assert reasons == {
        0: FinishReason.LENGTH,
        1: FinishReason.DROPPED_POOL_FULL,
        2: FinishReason.DROPPED_POOL_FULL,
    }
    assert len(tokens[2]) == 1  # what it had is delivered
    scheduler = make_scheduler(num_blocks=5, watermark=0.0, pressure="reject")
    add(scheduler, make_request(16, 1, request_id=0), make_request(4, 4, request_id=1))
    plan = scheduler.plan(0.0)
    assert slices(plan) == {0: (0, 16)}
    (refused,) = scheduler.take_news()
    assert refused.request_id == 1
    assert refused.finish.reason is FinishReason.REJECTED_POOL_FULL
    assert refused.ends_request


def test_wait_preempts_nobody_while_anybody_moves():
    scheduler = make_scheduler(num_blocks=6, watermark=0.0, pressure="wait")
    add(scheduler, make_request(8, 4, request_id=0), make_request(8, 3, request_id=1))
    assert slices(step(scheduler)) == {0: (0, 8), 1: (0, 8)}
    assert slices(step(scheduler)) == {0: (8, 1)}  # has the last block; 1 waits
    assert slices(step(scheduler)) == {0: (9, 1)}
    assert slices(step(scheduler)) == {0: (10, 1)}
    assert slices(step(scheduler)) == {1: (8, 1)}
    assert scheduler.num_preemptions == 0


def test_wait_ends_a_standstill_with_the_newest():
    scheduler = make_scheduler(num_blocks=5, watermark=0.0, pressure="wait")
    add(scheduler, make_request(8, 4, request_id=0), make_request(8, 4, request_id=1))
    step(scheduler)
    assert slices(step(scheduler)) == {}
    assert scheduler.num_preemptions == 1
    assert slices(step(scheduler)) == {0: (8, 1)}
    while scheduler.has_unfinished:
        step(scheduler)


def test_swapped_sequences_come_back_as_they_were():
    """Nothing is computed twice, where recomputing does so."""

    def computed(pressure, **host):
        engine = make_engine(
            num_blocks=7, max_context=32, watermark=0.0, pressure=pressure, **host
        )
        for prompt in PROMPTS:
            engine.add(prompt, make_request(1, 12).sampling)
        count, metrics = 0, []
        while engine.has_unfinished:
            outcome = engine.step()
            metrics += [one.metrics for one in outcome.updates if one.metrics]
            if outcome.metrics is not None:
                count += outcome.metrics.num_prefill_tokens
                count += outcome.metrics.num_decode_tokens
        return count, metrics

    least = 3 * (8 + 12 - 1)
    count, metrics = computed("preempt_swap", host_blocks=16)
    assert count == least
    assert sum(one.num_swaps for one in metrics) > 0
    assert sum(one.num_recomputed_tokens for one in metrics) == 0
    count, metrics = computed("preempt_recompute")
    assert count == least + sum(one.num_recomputed_tokens for one in metrics) > least


def test_a_step_tells_how_many_blocks_went_out_and_came_in():
    scheduler = make_scheduler(
        num_blocks=6, watermark=0.0, pressure="preempt_swap", host_blocks=16
    )
    add(scheduler, make_request(8, 4, request_id=0), make_request(8, 4, request_id=1))
    moved = []
    while scheduler.has_unfinished:
        metrics = commit(scheduler, scheduler.plan(0.0)).metrics
        moved.append((metrics.num_swapped_out_blocks, metrics.num_swapped_in_blocks))
    # 0 gets the last block, and with its 4 tokens it ends after 3 more steps
    assert moved[:5] == [(0, 0), (2, 0), (0, 0), (0, 0), (0, 2)]
    assert not any(one for pair in moved[5:] for one in pair)


def test_without_room_on_the_host_the_victim_is_recomputed():
    _, reasons, scheduler = serve("preempt_swap", host_blocks=8)
    assert set(reasons.values()) == {FinishReason.LENGTH}
    assert scheduler.num_preemptions > 0


def test_swapping_needs_a_host_that_holds_one_sequence():
    with pytest.raises(
        ValueError, match="host_blocks=0 cannot hold one.*raise host_blocks"
    ):
        make_scheduler(pressure="preempt_swap")
    with pytest.raises(ValueError, match="has regions; use allocator='paged'"):
        make_scheduler(pressure="preempt_swap", allocator="contiguous_max", host_blocks=99)


def test_a_sequence_that_comes_back_alone_is_not_taken_for_stuck():
    """The step that brings it back computes nothing; the next goes on where it was."""
    scheduler = make_scheduler(
        num_blocks=6, watermark=0.0, pressure="preempt_swap", host_blocks=16
    )
    add(scheduler, make_request(8, 12, request_id=0), make_request(8, 12, request_id=1))
    step(scheduler)
    assert slices(step(scheduler)) == {0: (8, 1)}
    scheduler.abort(0, FinishReason.ABORTED, 0.0)
    plan = step(scheduler)
    assert slices(plan) == {}
    assert (plan.num_running, len(plan.started), len(plan.moves)) == (1, 1, 2)
    assert slices(step(scheduler)) == {1: (8, 1)}


def swapped_samples(num_samples):
    """Request 0 runs, and 1 with all its samples is on the host."""
    scheduler = make_scheduler(
        num_blocks=8, watermark=0.0, pressure="preempt_swap", host_blocks=16
    )
    add(
        scheduler,
        make_request(12, 12, request_id=0),
        make_request(10, 6, request_id=1, n=num_samples),
    )
    while not scheduler.num_preemptions:
        step(scheduler)
    host = scheduler.running.swapper.host
    assert host.num_free(0) < 16
    return scheduler, host


@pytest.mark.parametrize("num_samples", [1, 3])
def test_aborting_who_is_on_the_host_gives_its_slots_back(num_samples):
    scheduler, host = swapped_samples(num_samples)
    updates = scheduler.abort(1, FinishReason.ABORTED, 0.0)
    assert [update.ends_request for update in updates] == [False] * (num_samples - 1) + [
        True
    ]
    assert host.num_free(0) == 16


def test_one_sample_of_those_on_the_host_is_aborted():
    scheduler, host = swapped_samples(3)
    (update,) = scheduler.abort(1, FinishReason.ABORTED, 0.0, sample_index=1)
    assert (update.sample_index, update.ends_request) == (1, False)
    while scheduler.has_unfinished:
        step(scheduler)
    assert host.num_free(0) == 16


def test_samples_come_back_when_there_is_room_for_their_copies():
    """They share a partly filled block, so all but one need a block to go on at all."""
    scheduler, _ = swapped_samples(3)
    waiting = list(scheduler.waiting)
    while 0 not in scheduler.ended:
        step(scheduler)
    assert {request.num_swaps for request in waiting} == {1}
