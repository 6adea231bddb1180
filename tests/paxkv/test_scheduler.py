"""Decisions of the scheduler, one at a time; whole runs are in the engine's tests."""

from paxkv.types import FinishReason
from tests.fakes import make_request, make_scheduler
from tests.scheduling import TOKEN, add, slices, step

# Slices.


def test_prefill_and_decode_share_one_budget():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    add(scheduler, make_request(5, request_id=0), make_request(9, request_id=1))
    assert slices(step(scheduler)) == {0: (0, 5), 1: (0, 3)}
    plan = step(scheduler)
    assert slices(plan) == {0: (5, 1), 1: (3, 6)}
    assert (plan.num_prefill_tokens, plan.num_decode_tokens) == (6, 1)
    plan = step(scheduler)
    assert slices(plan) == {0: (6, 1), 1: (9, 1)}
    assert (plan.num_prefill_tokens, plan.num_decode_tokens) == (0, 2)


def test_only_a_slice_that_reaches_the_last_known_token_samples():
    scheduler = make_scheduler(max_num_batched_tokens=4)
    add(scheduler, make_request(9))
    plans = [step(scheduler) for _ in range(4)]
    assert [plan.samples.tolist() for plan in plans] == [[False], [False], [True], [True]]
    assert slices(plans[2]) == {0: (8, 1)}
    assert plans[2].num_decode_tokens == 0  # the last token of a prompt


def test_budget_goes_to_the_oldest_first():
    scheduler = make_scheduler(max_num_batched_tokens=2)
    add(scheduler, *(make_request(1, request_id=i) for i in range(4)))
    assert slices(step(scheduler)) == {0: (0, 1), 1: (0, 1)}
    assert slices(step(scheduler)) == {0: (1, 1), 1: (1, 1)}


def test_tables_cover_exactly_what_the_slice_needs():
    scheduler = make_scheduler(max_num_batched_tokens=6, block_size=4)
    add(scheduler, make_request(13))
    counts = []
    for _ in range(4):
        plan = step(scheduler)
        counts.append(int(plan.tables.num_blocks[0][plan.rows[0]]))
    assert counts == [2, 3, 4, 4]  # of 6, 12, 13 and 14 tokens


# Admission.


def test_first_come_first_served_stops_at_the_first_that_does_not_fit():
    scheduler = make_scheduler(num_blocks=9, watermark=0.0)  # 32 positions
    add(
        scheduler,
        make_request(16, request_id=0),
        make_request(20, request_id=1),
        make_request(1, request_id=2),
    )
    plan = step(scheduler)
    assert slices(plan) == {0: (0, 16)}
    assert (plan.num_running, plan.num_waiting) == (1, 2)


def test_rows_limit_the_running_requests():
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, *(make_request(2, request_id=i) for i in range(3)))
    assert set(slices(step(scheduler))) == {0, 1}


def test_watermark_stays_free_unless_nothing_runs():
    scheduler = make_scheduler(num_blocks=11, watermark=0.5)  # keeps 5 of 10 free
    add(scheduler, make_request(24, request_id=0), make_request(1, request_id=1))
    assert set(slices(step(scheduler))) == {0}
    scheduler.abort(0, FinishReason.ABORTED, now_s=0.0)
    assert set(slices(step(scheduler))) == {1}


def test_a_row_start_tells_of_each_admission():
    scheduler = make_scheduler(preempt_every=2)
    add(scheduler, make_request(3, request_id=9))
    (start,) = step(scheduler).started
    assert (start.row, start.request_id, start.num_prompt_tokens) == (0, 9, 3)
    assert step(scheduler).started == ()  # preempted
    assert len(step(scheduler).started) == 1


# Preemption.


def full_pool(**limits):
    """Three requests whose blocks are full, in a pool without a free block."""
    scheduler = make_scheduler(num_blocks=7, watermark=0.0, **limits)
    add(scheduler, *(make_request(8, 16, request_id=i) for i in range(3)))
    assert slices(step(scheduler)) == {0: (0, 8), 1: (0, 8), 2: (0, 8)}
    assert scheduler.allocator.usage(0).num_free == 0
    return scheduler


def test_newest_gives_way_and_comes_back_in_order():
    scheduler = full_pool()
    plan = step(scheduler)
    assert slices(plan) == {0: (8, 1), 1: (8, 1)}
    assert plan.num_preempted == 1
    (victim,) = scheduler.waiting
    assert victim.request_id == 2
    assert victim.output_ids == [TOKEN]
    assert (victim.num_preemptions, victim.num_lost_tokens) == (1, 8)
    assert victim.num_recomputed_tokens == 0  # it may yet be aborted


def test_nothing_is_admitted_in_a_step_that_preempted():
    scheduler = full_pool()
    add(scheduler, make_request(1, request_id=3))
    assert set(slices(step(scheduler))) == {0, 1}
    assert [request.request_id for request in scheduler.waiting] == [2, 3]


def test_preempted_request_computes_prompt_and_outputs_again():
    scheduler = full_pool()
    step(scheduler)
    scheduler.abort(0, FinishReason.ABORTED, now_s=0.0)
    plan = step(scheduler)
    assert slices(plan) == {1: (9, 1), 2: (0, 9)}
    assert plan.tables.tokens[plan.rows[1], 8] == TOKEN
    victim = plan.requests[1]
    assert (victim.num_lost_tokens, victim.num_recomputed_tokens) == (0, 8)


def test_a_victim_already_in_the_plan_returns_its_tokens():
    """The budget is cut anew: what 1 loses goes to 2, which would have got nothing."""
    scheduler = make_scheduler(
        num_blocks=8, watermark=0.0, max_num_batched_tokens=9, victim="fewest_outputs"
    )
    add(scheduler, make_request(4, 16, request_id=0), make_request(4, 16, request_id=1))
    step(scheduler)
    # 0 needs its second block; 1 has fewer outputs, was given a slice, and loses it.
    scheduler.running.requests[0].output_ids.append(TOKEN)
    scheduler.tables.tokens[0, 5] = TOKEN
    scheduler.tables.num_tokens[0] += 1
    scheduler.allocator.pools[0].allocate(5)
    plan = scheduler.plan(0.0)
    assert slices(plan) == {0: (4, 2)}
    assert plan.num_preempted == 1
    assert int(plan.lengths.sum()) == plan.num_prefill_tokens + plan.num_decode_tokens


def test_no_request_is_skipped_when_an_earlier_one_leaves_the_plan():
    """A victim in the middle of the plan shifts nobody out of it."""
    scheduler = make_scheduler(num_blocks=9, watermark=0.0, victim="fewest_outputs")
    add(scheduler, *(make_request(7, 20, request_id=i) for i in range(4)))
    step(scheduler)
    for request in scheduler.running.requests:
        # only request 1 has few outputs, though 2 and 3 are newer
        request.output_ids[:] = [TOKEN] if request.request_id == 1 else [TOKEN] * 2
    for index in (0, 2, 3):
        row = scheduler.running.rows[index]
        scheduler.tables.tokens[row, 8] = TOKEN
        scheduler.tables.num_tokens[row] = 9
    plan = scheduler.plan(0.0)
    assert slices(plan) == {0: (7, 2), 2: (7, 2)}  # 3 gave way after 1
    assert {request.request_id for request in scheduler.waiting} == {1, 3}


def test_exempt_request_stalls_and_keeps_its_blocks():
    scheduler = make_scheduler(num_blocks=6, watermark=0.0, max_preemptions=0)
    add(scheduler, make_request(9, 4, request_id=0), make_request(8, 4, request_id=1))
    step(scheduler)
    stalled = [step(scheduler) for _ in range(3)]  # until 0 ends
    assert [slices(plan) for plan in stalled] == [{0: (9, 1)}, {0: (10, 1)}, {0: (11, 1)}]
    assert all(plan.num_running == 2 for plan in stalled)
    assert all(plan.num_preempted == 0 for plan in stalled)
    assert slices(step(scheduler)) == {1: (8, 1)}


def test_exempt_request_gives_way_if_the_oldest_needs_it():
    scheduler = full_pool(max_preemptions=0)
    plan = step(scheduler)
    assert slices(plan) == {0: (8, 1), 1: (8, 1)}
    assert plan.num_preempted == 1


def test_stalled_prefill_makes_do_with_the_room_in_its_table():
    scheduler = make_scheduler(
        num_blocks=6, watermark=0.0, max_num_batched_tokens=5, max_preemptions=0
    )
    add(scheduler, make_request(2, 6, request_id=0), make_request(10, request_id=1))
    assert slices(step(scheduler)) == {0: (0, 2), 1: (0, 3)}
    scheduler.allocator.pools[0].allocate(3)  # nothing is left
    assert slices(scheduler.plan(0.0)) == {0: (2, 1), 1: (3, 1)}


def test_forced_preemption_ends_with_the_exemption():
    scheduler = make_scheduler(preempt_every=1, max_preemptions=3)
    add(scheduler, make_request(3, max_tokens=5))
    plans = []
    while scheduler.has_unfinished:
        plans.append(step(scheduler))
    assert sum(plan.num_preempted for plan in plans) == 3
    assert len(plans) == 8  # start, thrice preempted and started again, and then the end
