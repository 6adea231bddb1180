import pytest

from paxkv.policies.scheduling import (
    LONGEST_SORTED_QUEUE,
    SCHEDULING_POLICIES,
    QueueView,
    dfs_weight,
    fair_share,
    fcfs,
    longest_prefix,
    priority,
    shortest_prefill,
    swapped_first,
)
from paxkv.request_options import RequestOptions
from tests.fakes import make_request, make_scheduler
from tests.scheduling import add, slices, step


class View:
    """Paths by request id, and tokens by tenant, as told."""

    def __init__(self, paths=None, served=None, swapped=()):
        self.paths, self.served, self.swapped = paths or {}, served or {}, swapped

    def cached_blocks(self, request):
        return self.paths.get(request.request_id, ())

    def served_tokens(self, tenant):
        return self.served.get(tenant, 0)

    def is_swapped(self, request):
        return request.request_id in self.swapped


def queue(*prompts, tenants=None):
    return [
        make_request(
            prompt,
            request_id=i,
            options=RequestOptions(tenant=tenants[i] if tenants else ""),
        )
        for i, prompt in enumerate(prompts)
    ]


def ids(requests):
    return [request.request_id for request in requests]


@pytest.mark.parametrize("policy", SCHEDULING_POLICIES.values())
@pytest.mark.parametrize("length", [0, 1, 5, LONGEST_SORTED_QUEUE + 1])
def test_every_policy_returns_each_request_once(policy, length):
    view = View({i: [1, i % 3 + 2] for i in range(length)}, {"a": 5})
    assert isinstance(view, QueueView)
    tenants = ["ab"[i % 2] for i in range(length)]
    waiting = queue(*(length - i for i in range(length)), tenants=tenants)
    assert sorted(ids(policy(waiting, view))) == list(range(length))


@pytest.mark.parametrize("policy", [fcfs, priority])
def test_the_queue_is_in_order_already(policy):
    waiting = queue(9, 3, 5)
    assert list(policy(waiting, View())) == waiting


def test_who_is_on_the_host_comes_first_then_who_came_first():
    waiting = queue(8, 8, 8, 8)
    assert ids(swapped_first(waiting, View(swapped=(1, 3)))) == [1, 3, 0, 2]
    assert ids(swapped_first(waiting, View())) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("scheduling", "order"), [("fcfs", [1, 2]), ("swapped_first", [2, 1])]
)
def test_nobody_enters_while_somebody_is_on_the_host(scheduling, order):
    """Of two that gave way, 2 with its samples went to the host and 1 did not."""
    scheduler = make_scheduler(
        num_blocks=9,
        watermark=0.0,
        pressure="paper",
        scheduling=scheduling,
        host_blocks=16,
    )
    add(
        scheduler,
        make_request(16, 14, request_id=0),
        make_request(6, 9, request_id=1),
        make_request(6, 9, request_id=2, n=2),
    )
    entered = []
    while scheduler.has_unfinished:
        entered += [start.request_id for start in step(scheduler).started]
    assert entered[:3] == [0, 1, 2]
    assert list(dict.fromkeys(entered[3:])) == order


def test_shortest_prefill_counts_outputs_that_a_preempted_request_has():
    waiting = queue(9, 3, 5, 5)
    waiting[1].output_ids[:] = [1] * 4
    assert ids(shortest_prefill(waiting, View())) == [2, 3, 1, 0]


def test_longest_prefix_has_most_cached_blocks_then_came_first():
    view = View({1: [4, 5], 2: [4], 3: [4, 6]})
    assert ids(longest_prefix(queue(8, 8, 8, 8), view)) == [1, 3, 2, 0]


def test_dfs_weight_goes_down_the_branch_with_most_requests():
    # 1 ─ 2 ─ 3 of requests 0, 3, 4 and branch 7 of 1; request 2 has nothing
    view = View({0: [1, 2], 1: [7, 8], 3: [1, 2, 3], 4: [1]})
    assert ids(dfs_weight(queue(8, 8, 8, 8, 8), view)) == [4, 0, 3, 1, 2]


@pytest.mark.parametrize("policy", [longest_prefix, dfs_weight])
def test_a_long_queue_is_served_as_it_comes(policy):
    waiting = queue(*(1 for _ in range(LONGEST_SORTED_QUEUE + 1)))
    view = View({LONGEST_SORTED_QUEUE: [1, 2]})
    assert list(policy(waiting, view)) == waiting
    assert ids(policy(waiting[1:], view))[0] == LONGEST_SORTED_QUEUE


def test_fair_share_alternates_by_tokens_not_by_requests():
    waiting = queue(10, 10, 10, 4, 4, 4, tenants="aaabbb")
    assert ids(fair_share(waiting, View())) == [0, 3, 4, 5, 1, 2]


def test_fair_share_counts_what_was_served_before():
    waiting = queue(10, 10, 10, 10, tenants="aabb")
    assert ids(fair_share(waiting, View(served={"a": 15}))) == [2, 3, 0, 1]


def options(**fields):
    return RequestOptions(**fields)


def first_admitted(scheduling, *requests, **settings):
    """Ids in the order in which a pool with one row admits them."""
    scheduler = make_scheduler(scheduling=scheduling, max_num_seqs=1, **settings)
    add(scheduler, *requests)
    order = []
    while scheduler.has_unfinished:
        for start in step(scheduler).started:
            order.append(start.request_id)
    return order


def test_a_scheduler_admits_in_the_order_of_its_policy():
    requests = [
        (9, options(priority=1)),
        (3, options(priority=2)),
        (5, options(priority=0)),
    ]

    def make():
        return [
            make_request(prompt, 1, request_id=i, options=option)
            for i, (prompt, option) in enumerate(requests)
        ]

    assert first_admitted("fcfs", *make()) == [0, 1, 2]
    assert first_admitted("priority", *make()) == [2, 0, 1]
    assert first_admitted("shortest_prefill", *make()) == [1, 2, 0]


def test_fair_share_in_a_scheduler_lets_the_second_tenant_in_between():
    requests = [
        make_request(8, 1, request_id=i, options=options(tenant=tenant))
        for i, tenant in enumerate("aaab")
    ]
    assert first_admitted("fair_share", *requests) == [0, 3, 1, 2]


def test_longest_prefix_in_a_scheduler_asks_the_cache():
    other = tuple(range(100, 109))
    requests = [
        make_request(9, 1, request_id=0),
        make_request(other, 1, request_id=1),
        make_request(9, 1, request_id=2),
    ]
    settings = {"prefix_caching": True}
    assert first_admitted("longest_prefix", *requests, **settings) == [0, 2, 1]


def test_urgent_requests_are_protected_from_preemption():
    """Under `priority` the rank is by priority, so the less urgent gives way, though it
    came first."""
    scheduler = make_scheduler(num_blocks=5, watermark=0.0, scheduling="priority")
    add(
        scheduler,
        make_request(8, 4, request_id=0, options=options(priority=5)),
        make_request(8, 4, request_id=1, options=options(priority=1)),
    )
    assert set(slices(step(scheduler))) == {0, 1}
    assert set(slices(step(scheduler))) == {1}
    assert ids(scheduler.waiting) == [0]


def test_without_the_priority_policy_a_priority_means_nothing():
    scheduler = make_scheduler(num_blocks=5, watermark=0.0)
    add(
        scheduler,
        make_request(8, 4, request_id=0, options=options(priority=5)),
        make_request(8, 4, request_id=1, options=options(priority=1)),
    )
    step(scheduler)
    assert set(slices(step(scheduler))) == {0}
