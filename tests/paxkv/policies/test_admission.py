import pytest

from paxkv.policies.admission import (
    ADMISSION_POLICIES,
    AdmissionPolicy,
    Demand,
    Optimistic,
    Reserve,
    Watermark,
)
from tests.fakes import make_request, make_scheduler
from tests.scheduling import add, slices, step


def demand(num_blocks, final_blocks, *, num_outputs=0, max_tokens=8):
    request = make_request(4, max_tokens)
    request.output_ids[:] = [1] * num_outputs
    return Demand(request=request, num_blocks=num_blocks, final_blocks=final_blocks)


@pytest.mark.parametrize("name", ADMISSION_POLICIES)
def test_each_offered_policy_is_one(name):
    assert isinstance(ADMISSION_POLICIES[name](101, 0.01), AdmissionPolicy)


@pytest.mark.parametrize("name", ADMISSION_POLICIES)
def test_nothing_stays_free_while_nothing_runs(name):
    """Else a request as large as the pool would wait for ever."""
    assert ADMISSION_POLICIES[name](101, 0.5).keep_free([], demand(100, 100)) == 0


def test_watermark_is_a_share_of_the_pool_rounded_down():
    policy = Watermark(250, 0.01)
    assert policy.keep_free([demand(1, 90)], demand(2, 80)) == 2
    policy.preempted([demand(1, 90)])
    policy.step_planned()
    assert policy.keep_free([demand(1, 90)], demand(2, 80)) == 2


def test_reserve_keeps_all_that_may_yet_be_needed():
    running = [demand(2, 5), demand(4, 4)]
    assert Reserve(101, 0.01).keep_free(running, demand(3, 7)) == (5 - 2) + (4 - 4) + (
        7 - 3
    )


def test_optimistic_keeps_a_share_of_that_which_sinks_with_every_quiet_step():
    policy, running = Optimistic(101, 0.01), [demand(0, 50)]
    assert policy.keep_free(running, demand(0, 50)) == 70
    for _ in range(300):
        policy.step_planned()
    assert policy.ratio == pytest.approx((0.7 + 0.098) / 2)  # linear
    for _ in range(900):
        policy.step_planned()
    assert policy.ratio == pytest.approx(0.098)  # and no further
    assert policy.keep_free(running, demand(0, 50)) == 10  # of 9.8, rounded up


def test_optimistic_learns_from_a_preemption_how_much_was_decoded():
    policy = Optimistic(101, 0.01)
    policy.preempted([demand(1, 9, num_outputs=10, max_tokens=100)] * 2)
    assert policy.ratio == pytest.approx((20 + 20 * 2) / (200 + 1))
    policy.preempted([demand(1, 9, num_outputs=8, max_tokens=8)])
    assert policy.ratio == 1.0  # never more than all


def served(admission, **settings):
    """(preemptions, most that ran at once) of six requests that outgrow the pool."""
    scheduler = make_scheduler(
        num_blocks=13, admission=admission, watermark=0.0, max_num_seqs=6, **settings
    )
    add(scheduler, *(make_request(4, 16, request_id=i) for i in range(6)))
    most = 0
    while scheduler.has_unfinished:
        most = max(most, step(scheduler).num_running)
    return scheduler.num_preemptions, most


def test_with_reserve_nobody_is_preempted():
    assert served("watermark")[0] > 0
    assert served("reserve") == (0, 2)  # 5 blocks each, of 12


def test_optimistic_runs_more_at_once_than_reserve():
    assert served("optimistic")[1] > served("reserve")[1]


def test_reserve_counts_all_samples_of_a_request_that_has_not_forked():
    """4 samples of 4 + 8 tokens: a block of prompt shared, two each of their own."""
    scheduler = make_scheduler(num_blocks=12, admission="reserve", max_num_seqs=8)
    add(scheduler, make_request(4, 8, request_id=0, n=4), make_request(4, 8, request_id=1))
    assert slices(step(scheduler)) == {0: (0, 4)}  # 9 of 11 blocks may go to request 0
    other = make_scheduler(num_blocks=13, admission="reserve", max_num_seqs=8)
    add(other, make_request(4, 8, request_id=0, n=4), make_request(4, 8, request_id=1))
    assert slices(step(other)) == {0: (0, 4), 1: (0, 4)}
