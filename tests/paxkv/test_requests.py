"""How requests end, and what is told of them, through the scheduler."""

import re

import pytest

from paxkv.request_options import Adapter, RequestOptions
from paxkv.types import FinishReason, TokenLogprobs
from tests.fakes import make_request, make_scheduler
from tests.scheduling import TOKEN, add, commit, slices, step

POET = Adapter(name="poet", version="2")

# Ends.


@pytest.mark.parametrize(
    "sampling,reason",
    [
        ({"ignore_eos": False}, FinishReason.STOP_TOKEN),
        ({"stop_token_ids": (0,)}, FinishReason.STOP_TOKEN),
        ({}, FinishReason.LENGTH),
    ],
)
def test_stop_tokens_and_eos(sampling, reason):
    scheduler = make_scheduler(eos_token_ids=(0,))
    add(scheduler, make_request(3, max_tokens=2, **sampling))
    outcome = commit(scheduler, scheduler.plan(0.0), token=0)
    if reason is FinishReason.LENGTH:
        outcome = commit(scheduler, scheduler.plan(0.0), token=0)
    (update,) = outcome.updates
    assert update.finish.reason is reason
    assert update.metrics.reason is reason
    assert update.new_token_ids == (0,)


def test_no_stop_token_counts_before_min_tokens():
    scheduler = make_scheduler(eos_token_ids=(0,))
    add(scheduler, make_request(3, max_tokens=9, min_tokens=3, ignore_eos=False))
    finishes = []
    while scheduler.has_unfinished:
        (update,) = commit(scheduler, scheduler.plan(0.0), token=0).updates
        finishes.append(update.finish and update.finish.reason)
    assert finishes == [None, None, FinishReason.STOP_TOKEN]


def test_generation_ends_where_the_context_does():
    scheduler = make_scheduler(max_context=8)
    add(scheduler, make_request(5, max_tokens=100))
    plans = []
    while scheduler.has_unfinished:
        plan = scheduler.plan(0.0)
        (update,) = commit(scheduler, plan).updates
        plans.append(plan)
    assert len(plans) == 3
    assert update.finish.reason is FinishReason.LENGTH
    assert "context of 8 tokens is full: 5 of the prompt and 3 of" in update.finish.message


@pytest.mark.parametrize(
    "request_of,reason,message",
    [
        (lambda: make_request(()), FinishReason.REJECTED_EMPTY, "at least 1 token"),
        (
            lambda: make_request((1, 2, 300)),
            FinishReason.REJECTED_BAD_TOKEN,
            "token id 300 at position 2, but the model's ids are 0..250",
        ),
        (lambda: make_request((-1,)), FinishReason.REJECTED_BAD_TOKEN, "token id -1"),
        (
            lambda: make_request((1,), stop_token_ids=(251,)),
            FinishReason.REJECTED_BAD_TOKEN,
            "stop_token_ids",
        ),
        (
            lambda: make_request((1,), logit_bias={999: 1.0}),
            FinishReason.REJECTED_BAD_TOKEN,
            "logit_bias",
        ),
        (
            lambda: make_request((1,), options=RequestOptions(adapter=POET)),
            FinishReason.REJECTED_NO_ADAPTER,
            r"'poet' of version '2' is not loaded \(none\); load it",
        ),
        (
            lambda: make_request(64, max_tokens=1),
            FinishReason.REJECTED_TOO_LONG,
            "prompt of 64 tokens.*context of 64; shorten it to at most 63",
        ),
        (
            lambda: make_request(40, max_tokens=1),
            FinishReason.REJECTED_NEVER_FITS,
            "prompt of 40 tokens exceeds the pool of 36 positions",
        ),
        (
            lambda: make_request(30, max_tokens=20),
            FinishReason.REJECTED_NEVER_FITS,
            "needs 49 positions, the pool has 36",
        ),
    ],
)
def test_what_can_never_be_served_is_rejected_with_the_numbers(request_of, reason, message):
    scheduler = make_scheduler(num_blocks=10)
    (update,) = scheduler.add(request_of())
    assert update.finish.reason is reason
    assert update.metrics.num_output_tokens == 0
    assert re.search(message, update.finish.message), update.finish.message
    assert not scheduler.has_unfinished


def test_longest_request_that_fits_is_served_alone():
    scheduler = make_scheduler(num_blocks=10)  # 36 positions
    add(scheduler, make_request(20, max_tokens=17))
    while scheduler.has_unfinished:
        step(scheduler)
    assert scheduler.allocator.usage(0).num_free == 9


def test_abort_frees_at_once_wherever_the_request_is():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, make_request(5, request_id=0), make_request(5, request_id=1))
    step(scheduler)
    for request_id, num_outputs in ((1, 0), (0, 1)):
        (update,) = scheduler.abort(request_id, FinishReason.ABORTED, now_s=3.0)
        assert update.finish.reason is FinishReason.ABORTED
        assert update.metrics.num_output_tokens == num_outputs
        assert update.metrics.finish_s == 3.0
    assert scheduler.allocator.usage(0).num_free == 16
    assert scheduler.abort(0, FinishReason.ABORTED, now_s=4.0) == []
    with pytest.raises(KeyError, match="request_id=5"):
        scheduler.abort(5, FinishReason.ABORTED, now_s=4.0)


def test_an_id_in_use_is_refused_and_an_ended_one_may_come_again():
    scheduler = make_scheduler()
    add(scheduler, make_request(5, request_id=3))
    with pytest.raises(ValueError, match="request_id=3 is in use"):
        scheduler.add(make_request(2, request_id=3))
    scheduler.abort(3, FinishReason.ABORTED, now_s=0.0)
    add(scheduler, make_request(2, request_id=3))
    assert slices(step(scheduler)) == {3: (0, 2)}


def test_a_sampled_id_that_the_model_lacks_is_a_bug():
    scheduler = make_scheduler()
    add(scheduler, make_request(2))
    with pytest.raises(AssertionError, match="outside of"):
        step(scheduler, token=251)


# Log-probabilities.


def entry(token_id):
    return TokenLogprobs(
        token_id=token_id, logprob=-1.0, rank=1, top_ids=(), top_logprobs=()
    )


def test_logprobs_reach_those_who_asked():
    scheduler = make_scheduler()
    add(scheduler, make_request(2, request_id=0), make_request(2, request_id=1))
    plan = scheduler.plan(0.0)
    outcome = commit(scheduler, plan, logprobs=(None, entry(TOKEN)))
    assert [update.logprobs for update in outcome.updates] == [(), (entry(TOKEN),)]


def test_prompt_logprobs_are_told_once_even_if_computed_twice():
    scheduler = make_scheduler(max_num_batched_tokens=3, preempt_every=3)
    add(scheduler, make_request(8, max_tokens=1, prompt_logprobs=0))
    told = []
    while scheduler.has_unfinished:
        plan = scheduler.plan(0.0)
        ends = zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True)
        chunks = tuple(
            tuple(entry(i) for i in range(start + 1, min(start + length + 1, 8)))
            for start, length in ends
        )
        for update in commit(scheduler, plan, prompt_logprobs=chunks).updates:
            told += [logprob.token_id for logprob in update.prompt_logprobs]
    assert told == list(range(1, 8))
