"""What of prompts and decodes a step may hold: whole prompts, one kind, whole batches."""

import pytest

from paxkv.types import FinishReason
from tests.fakes import fake_completion, make_engine, make_request, make_scheduler
from tests.scheduling import add, slices, step


def lengths(plan):
    return {request: length for request, (_, length) in slices(plan).items()}


def uncut(**settings):
    return make_scheduler(max_context=32, chunked_prefill=False, **settings)


def test_a_prompt_that_is_not_cut_waits_for_a_step_that_holds_it():
    scheduler = uncut(max_num_batched_tokens=32)
    add(
        scheduler,
        make_request(20, 3, request_id=0),
        make_request(13, 2, request_id=1),
        make_request(2, 2, request_id=2),
    )
    assert lengths(step(scheduler)) == {0: 20}  # nobody overtakes the second
    assert lengths(step(scheduler)) == {0: 1, 1: 13, 2: 2}
    assert lengths(step(scheduler)) == {0: 1, 1: 1, 2: 1}
    assert not scheduler.has_unfinished


def test_what_the_cache_has_need_not_fit_the_step():
    scheduler = uncut(max_num_batched_tokens=32, prefix_caching=True)
    add(scheduler, make_request(24, 1, request_id=0))
    step(scheduler)
    other = tuple(range(101, 116))
    add(scheduler, make_request(other, 1, request_id=1), make_request(25, 1, request_id=2))
    assert lengths(step(scheduler)) == {1: 15, 2: 1}  # 24 of its 25 are cached


def test_a_step_that_failed_is_planned_again_whole():
    scheduler = uncut(max_num_batched_tokens=32)
    add(scheduler, make_request(20, 1, request_id=0), make_request(12, 1, request_id=1))
    assert lengths(scheduler.plan(0.0)) == {0: 20, 1: 12}
    scheduler.plan(0.0)
    assert lengths(step(scheduler)) == {0: 20, 1: 12}


def test_a_budget_below_the_context_is_refused_with_both():
    with pytest.raises(ValueError, match=r"max_context=32.*=31; raise it to ≥ 32"):
        uncut(max_num_batched_tokens=31)


def test_without_mixing_prompts_come_before_decodes():
    scheduler = make_scheduler(mix_prefill=False, max_num_batched_tokens=8)
    add(scheduler, make_request(4, 3, request_id=0))
    assert lengths(step(scheduler)) == {0: 4}
    add(scheduler, make_request(12, 2, request_id=1), make_request(2, 2, request_id=2))
    assert lengths(step(scheduler)) == {1: 8}
    assert lengths(step(scheduler)) == {1: 4, 2: 2}
    assert lengths(step(scheduler)) == {0: 1, 1: 1, 2: 1}
    assert lengths(step(scheduler)) == {0: 1}


def test_without_mixing_a_full_pool_lets_decodes_go_on():
    """The second finds no room, so the first one's decodes have their steps."""
    scheduler = make_scheduler(mix_prefill=False, num_blocks=4, watermark=0.0)
    add(scheduler, make_request(8, 4, request_id=0), make_request(8, 1, request_id=1))
    assert lengths(step(scheduler)) == {0: 8}
    for _ in range(3):
        assert lengths(step(scheduler)) == {0: 1}
    assert lengths(step(scheduler)) == {1: 8}


def test_who_gave_way_in_a_standstill_does_not_take_the_blocks_back():
    """Under `wait` both stand still, and the newest goes: its prompt would come first."""
    engine = make_engine(mix_prefill=False, num_blocks=5, watermark=0.0, pressure="wait")
    tokens = {}
    for start in (1, 21):
        prompt = tuple(range(start, start + 8))
        request = engine.add(prompt, make_request(8, 6).sampling)
        tokens[request] = (prompt, [])
    for _ in range(40):
        for update in engine.step().updates:
            tokens[update.request_id][1].extend(update.new_token_ids)
    assert not engine.has_unfinished
    for prompt, generated in tokens.values():
        assert tuple(generated) == fake_completion(prompt, 6)


@pytest.mark.parametrize("allocator", ["paged", "contiguous_max"])
def test_a_batch_is_admitted_when_the_last_has_ended(allocator):
    scheduler = make_scheduler(
        batching="request", max_num_seqs=2, num_blocks=33, allocator=allocator
    )
    requests = [make_request(4, length, request_id=i) for i, length in enumerate((1, 3, 2))]
    add(scheduler, *requests)
    assert lengths(step(scheduler)) == {0: 4, 1: 4}
    add(scheduler, make_request(4, 1, request_id=3))
    assert lengths(step(scheduler)) == {1: 1}  # there is a row, but the batch is closed
    assert lengths(step(scheduler)) == {1: 1}
    assert lengths(step(scheduler)) == {2: 4, 3: 4}


def test_a_batch_whose_requests_are_aborted_is_over():
    scheduler = make_scheduler(batching="request", max_num_seqs=1)
    add(scheduler, make_request(4, 9, request_id=0), make_request(4, 1, request_id=1))
    step(scheduler)
    scheduler.abort(0, FinishReason.ABORTED, 0.0)
    assert lengths(step(scheduler)) == {1: 4}
