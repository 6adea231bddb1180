"""Requests of several sequences: what is shared, who gives way, who is told what."""

import pytest

from paxkv.request_options import RequestOptions
from paxkv.types import FinishReason, TokenLogprobs
from tests.fakes import make_request, make_scheduler
from tests.scheduling import TOKEN, add, commit, step


def samples(plan):
    """{sample index: (start, length)} of a plan for one request."""
    indices = [request.sample_index for request in plan.requests]
    pairs = zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True)
    return dict(zip(indices, pairs, strict=True))


def run(scheduler, most=100):
    """Updates until all have ended."""
    updates = []
    for _ in range(most):
        if not scheduler.has_unfinished:
            return updates
        plan = scheduler.plan(0.0)
        updates += commit(scheduler, plan).updates
    raise AssertionError(f"unfinished after {most} steps")


# Samples.


def test_samples_share_the_prompt_and_compute_only_its_last_token_again():
    scheduler = make_scheduler()
    add(scheduler, make_request(10, 4, n=3))
    assert samples(step(scheduler)) == {0: (0, 10)}
    assert scheduler.allocator.usage(0).num_free == 16 - 3
    plan = step(scheduler)
    assert samples(plan) == {0: (10, 1), 1: (9, 1), 2: (9, 1)}
    assert [start.sample_index for start in plan.started] == [1, 2]
    tables = [scheduler.tables.blocks(0, row) for row in plan.rows.tolist()]
    assert {tuple(table[:2]) for table in tables} == {(1, 2)}
    plan = step(scheduler)
    assert samples(plan) == {0: (11, 1), 1: (10, 1), 2: (10, 1)}
    # each of them writes behind the prompt, so two have copied its last block
    assert len({scheduler.tables.blocks(0, row)[2] for row in plan.rows.tolist()}) == 3
    assert scheduler.journal.num_copied_blocks == 2


def test_each_sample_ends_by_itself_and_the_last_ends_the_request():
    scheduler = make_scheduler()
    add(scheduler, make_request(5, 3, n=2, request_id=4))
    updates = run(scheduler)
    ends = [update for update in updates if update.finish is not None]
    assert [(end.request_id, end.sample_index) for end in ends] == [(4, 0), (4, 1)]
    assert [end.ends_request for end in ends] == [False, True]
    assert [end.metrics.sample_index for end in ends] == [0, 1]
    for index in range(2):
        tokens = [u.new_token_ids for u in updates if u.sample_index == index]
        assert sum(tokens, ()) == (TOKEN,) * 3
    assert scheduler.roster.num_ended == scheduler.roster.num_added == 1
    assert scheduler.allocator.usage(0).num_free == 16


def test_samples_without_a_row_wait_and_are_served():
    scheduler = make_scheduler(max_num_seqs=3)
    add(scheduler, make_request(5, 4, n=3), make_request(5, 4, request_id=1))
    assert step(scheduler).num_running == 2
    plan = step(scheduler)
    assert (plan.num_running, plan.num_waiting) == (3, 1)
    ends = [update for update in run(scheduler) if update.finish is not None]
    assert sorted((end.request_id, end.sample_index) for end in ends) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]


def test_more_samples_than_rows_run_one_after_the_other():
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, make_request(5, 4, n=4))
    ends = [update for update in run(scheduler) if update.finish is not None]
    assert sorted(end.sample_index for end in ends) == [0, 1, 2, 3]
    assert [end.ends_request for end in ends] == [False] * 3 + [True]


def test_more_beams_than_rows_can_never_run():
    scheduler = make_scheduler(max_num_seqs=3)
    (update,) = scheduler.add(make_request(5, 4, n=4, use_beam_search=True))
    assert update.finish.reason is FinishReason.REJECTED_NEVER_FITS
    assert "max_num_seqs=3" in update.finish.message
    assert update.ends_request


def test_the_newest_samples_give_way_to_the_oldest():
    scheduler = make_scheduler(num_blocks=5, watermark=0.0)
    add(scheduler, make_request(8, 9, n=3))
    step(scheduler)
    plan = step(scheduler)  # 2 blocks of prompt and one each for 0 and 1, which writes next
    assert plan.num_running + len(scheduler.waiting) == 3
    updates = run(scheduler)
    ends = [update for update in updates if update.finish is not None]
    assert {end.sample_index for end in ends} == {0, 1, 2}
    assert {end.finish.reason for end in ends} == {FinishReason.LENGTH}
    assert scheduler.num_preemptions > 0


def test_one_sample_is_aborted_and_the_others_go_on():
    scheduler = make_scheduler()
    add(scheduler, make_request(5, 4, n=3))
    for _ in range(2):
        step(scheduler)
    (update,) = scheduler.abort(0, FinishReason.ABORTED, 0.0, sample_index=1)
    assert (update.sample_index, update.ends_request) == (1, False)
    assert update.finish.reason is FinishReason.ABORTED
    assert scheduler.abort(0, FinishReason.ABORTED, 0.0, sample_index=1) == []
    updates = run(scheduler)
    ends = [update for update in updates if update.finish is not None]
    assert [end.sample_index for end in ends] == [0, 2]
    assert [end.ends_request for end in ends] == [False, True]


def test_aborting_the_request_ends_all_its_samples():
    scheduler = make_scheduler()
    add(scheduler, make_request(5, 4, n=3))
    for _ in range(2):
        step(scheduler)
    updates = scheduler.abort(0, FinishReason.ABORTED, 0.0)
    assert [update.sample_index for update in updates] == [0, 1, 2]
    assert [update.ends_request for update in updates] == [False, False, True]
    assert scheduler.allocator.usage(0).num_free == 16
    assert not scheduler.has_unfinished


def logprobs_of(plan, of_sample):
    return tuple(
        TokenLogprobs(
            token_id=TOKEN,
            logprob=of_sample[request.sample_index],
            rank=1,
            top_ids=(),
            top_logprobs=(),
        )
        for request in plan.requests
    )


def test_best_of_tells_only_the_likeliest_and_only_at_the_end():
    scheduler = make_scheduler()
    add(scheduler, make_request(5, 3, n=2, best_of=3))
    updates = []
    while scheduler.has_unfinished:
        plan = scheduler.plan(0.0)
        logprobs = logprobs_of(plan, {0: -3.0, 1: -1.0, 2: -2.0})
        news = commit(scheduler, plan, logprobs=logprobs).updates
        assert not news or not scheduler.has_unfinished
        updates += news
    assert [update.sample_index for update in updates] == [0, 1]  # renumbered by rank
    assert [update.score for update in updates] == [-3.0, -6.0]
    assert [update.ends_request for update in updates] == [False, True]
    assert all(update.new_token_ids == (TOKEN,) * 3 for update in updates)


def test_a_step_tells_how_many_blocks_it_copied():
    scheduler = make_scheduler()
    add(scheduler, make_request(10, 4, n=3))
    copied = []
    while scheduler.has_unfinished:
        metrics = commit(scheduler, scheduler.plan(0.0)).metrics
        copied.append(metrics.num_copied_blocks)
    assert copied[:3] == [0, 2, 0]
    assert sum(copied) == 2


# Forks of a request.


def fork(scheduler, request_id, child_id, **settings):
    return scheduler.fork(request_id, make_request(9, 6, request_id=child_id, **settings))


def test_a_fork_goes_on_from_where_its_parent_is():
    scheduler = make_scheduler()
    add(scheduler, make_request(9, 6, request_id=0))
    for _ in range(3):
        step(scheduler)
    (news,) = fork(scheduler, 0, 1)
    assert (news.request_id, news.new_token_ids) == (1, (TOKEN,) * 3)
    plan = step(scheduler)
    assert plan.starts.tolist() == [11, 11]
    assert plan.lengths.tolist() == [1, 1]
    assert [start.request_id for start in plan.started] == [1]
    ends = [update for update in run(scheduler) if update.finish is not None]
    assert [(end.request_id, end.ends_request) for end in ends] == [(0, True), (1, True)]
    assert [end.metrics.num_output_tokens for end in ends] == [6, 6]


def test_a_fork_in_a_full_pool_gives_way_before_its_first_step():
    scheduler = make_scheduler(num_blocks=4, watermark=0.0)
    add(scheduler, make_request(9, 3, request_id=0))
    step(scheduler)
    scheduler.fork(0, make_request(9, 3, request_id=1))
    plan = step(scheduler)
    assert [request.request_id for request in plan.requests] == [0]
    assert plan.started == ()
    assert [request.request_id for request in scheduler.waiting] == [1]
    assert len([u for u in run(scheduler) if u.finish is not None]) == 2


def test_a_fork_without_a_row_waits_and_computes_anew():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, make_request(9, 3, request_id=0))
    step(scheduler)
    fork(scheduler, 0, 1)
    assert [request.request_id for request in scheduler.waiting] == [1]
    starts = []
    while scheduler.has_unfinished:
        plan = step(scheduler)
        starts += zip(
            [r.request_id for r in plan.requests], plan.starts.tolist(), strict=True
        )
    assert (1, 0) in starts


def test_a_fork_before_the_first_step_has_no_news():
    scheduler = make_scheduler()
    add(scheduler, make_request(9, 6, request_id=0))
    assert fork(scheduler, 0, 1) == []
    assert len(scheduler.waiting) == 2


def test_what_cannot_fork():
    scheduler = make_scheduler()
    with pytest.raises(KeyError, match="no request has request_id=0"):
        fork(scheduler, 0, 1)
    add(scheduler, make_request(9, 6, request_id=0), make_request(9, 6, request_id=2, n=2))
    with pytest.raises(ValueError, match="request_id=0 is in use"):
        fork(scheduler, 0, 0)
    with pytest.raises(ValueError, match="of 2 sequences cannot fork into one of 1"):
        fork(scheduler, 2, 1)
    with pytest.raises(ValueError, match="of 1 sequences cannot fork into one of 2"):
        fork(scheduler, 0, 1, n=2)
    scheduler.abort(0, FinishReason.ABORTED, 0.0)
    with pytest.raises(KeyError, match="request_id=0 has ended"):
        fork(scheduler, 0, 1)


def test_a_fork_may_end_before_its_first_step():
    scheduler = make_scheduler()
    add(scheduler, make_request(9, 6, request_id=0))
    step(scheduler)
    fork(scheduler, 0, 1)
    scheduler.abort(1, FinishReason.ABORTED, 0.0)
    assert step(scheduler).started == ()
    scheduler.abort(0, FinishReason.ABORTED, 0.0)
    assert scheduler.allocator.usage(0).num_free == 16


def test_a_parent_may_end_before_its_fork():
    scheduler = make_scheduler()
    add(scheduler, make_request(9, 6, request_id=0))
    step(scheduler)
    fork(scheduler, 0, 1)
    scheduler.abort(0, FinishReason.ABORTED, 0.0)
    plan = step(scheduler)
    assert [request.request_id for request in plan.requests] == [1]
    assert plan.moves == ()  # it is alone with its blocks by now
    assert len([u for u in run(scheduler) if u.finish is not None]) == 1


# Hits.


def test_hits_are_counted_once_per_request():
    scheduler = make_scheduler(prefix_caching=True, preempt_every=2, max_preemptions=2)
    request = make_request(9, 4)
    add(scheduler, request)
    run(scheduler)
    assert request.num_preemptions > 0
    assert (request.num_cached_tokens, scheduler.admitting.num_hit_tokens) == (0, 0)
    again = make_request(9, 4, request_id=1)
    add(scheduler, again)
    run(scheduler)
    assert again.num_cached_tokens == 8
    assert scheduler.admitting.num_hit_tokens == 8
    assert scheduler.admitting.num_looked_up_tokens == 18


def test_what_the_cache_kept_through_a_preemption_is_not_computed_twice():
    scheduler = make_scheduler(prefix_caching=True, preempt_every=2, max_preemptions=1)
    request = make_request(9, 4)
    add(scheduler, request)
    step(scheduler)
    step(scheduler)  # preempted with 9 tokens, 8 of them in full blocks
    plan = step(scheduler)
    assert plan.starts.tolist() == [8]
    assert request.num_recomputed_tokens == 1


@pytest.mark.parametrize("reads_cache", [True, False])
def test_requests_of_one_prefix_wait_for_the_first_if_told_to(reads_cache):
    options = RequestOptions(reads_cache=reads_cache)
    scheduler = make_scheduler(
        prefix_caching=True, hold_shared_prefixes=True, max_num_batched_tokens=8
    )
    add(
        scheduler,
        make_request(13, 4, request_id=0),
        make_request(13, 4, request_id=1, options=options),
    )
    step(scheduler)
    plan = step(scheduler)
    ids = [request.request_id for request in plan.requests]
    assert ids == ([0] if reads_cache else [0, 1])
    plan = step(scheduler)
    if reads_cache:
        assert plan.starts.tolist() == [13, 12]
    assert len([u for u in run(scheduler) if u.finish is not None]) == 2


def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole():
    scheduler = make_scheduler(prefix_caching=True)
    add(scheduler, make_request(9, 2, request_id=0))
    run(scheduler)
    add(scheduler, make_request(9, 2, request_id=1, prompt_logprobs=1))
    plan = scheduler.plan(0.0)
    assert (plan.starts.tolist(), plan.lengths.tolist()) == ([0], [9])
