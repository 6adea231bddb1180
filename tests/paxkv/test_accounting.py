import numpy as np
import pytest

from paxkv.allocators import ALLOCATORS
from paxkv.types import StepResult
from tests.fakes import make_request, make_scheduler


def run(scheduler, *requests, steps=1):
    """The pool's partition in each of the first steps."""
    for request in requests:
        assert scheduler.add(request) == []
    partitions = []
    for _ in range(steps):
        plan = scheduler.plan(0.0)
        tokens = np.ones(len(plan.rows), np.int32)
        scheduler.commit(plan, StepResult(tokens=tokens, duration_s=0.0), 0.0)
        partitions += plan.partitions
    return partitions


def classes(partition):
    names = ["token_states", "tail", "reserved", "internal", "rounding", "cached", "free"]
    return {name: getattr(partition, name) for name in names if getattr(partition, name)}


def test_paged_has_token_states_and_a_tail():
    first, second = run(
        make_scheduler(), make_request(10, 9), make_request(4, 9, request_id=1), steps=2
    )
    assert classes(first) == {"token_states": 14, "tail": 2, "free": 48}
    assert classes(second) == {"token_states": 16, "tail": 4, "free": 44}


@pytest.mark.parametrize(
    "name,expected",
    [
        # 10 + 9 of 64 tokens: 45 are never used
        ("contiguous_max", {"reserved": 9, "internal": 45}),
        # 10 + 16 tokens in 7 blocks of 4, rounded to 8
        ("contiguous_pow2", {"reserved": 9, "internal": 7, "tail": 2, "rounding": 4}),
        # 10 + 9 tokens in 5 blocks, rounded to 8
        ("contiguous_oracle", {"reserved": 9, "tail": 1, "rounding": 12}),
    ],
)
def test_contiguous_holds_more_than_it_uses(name, expected):
    scheduler = make_scheduler(allocator=name, num_blocks=33)
    first, second = run(scheduler, make_request(10, 9), steps=2)
    held = 10 + sum(expected.values())
    assert classes(first) == {"token_states": 10, "free": 128 - held, **expected}
    assert (second.token_states, second.reserved) == (11, 8)


def test_reservation_ends_at_the_context():
    scheduler = make_scheduler(allocator="contiguous_pow2")
    (partition,) = run(scheduler, make_request(50, max_tokens=40))
    assert classes(partition) == {"token_states": 50, "reserved": 14}


def test_free_is_unusable_if_no_run_serves_the_head_of_the_queue():
    def requests():
        return [make_request(20, 20, request_id=i) for i in range(3)]

    scheduler = make_scheduler(allocator="contiguous_oracle", num_blocks=40)
    (partition,) = run(scheduler, *requests())
    assert partition.free == partition.unusable_free == 4 * (39 - 2 * 16)
    (partition,) = run(make_scheduler(num_blocks=13, watermark=0.0), *requests())
    assert partition.free == 8 * 1  # the third waits
    assert partition.unusable_free == 0


def test_free_is_usable_while_nobody_waits_or_the_budget_is_the_limit():
    scheduler = make_scheduler(
        allocator="contiguous_max", num_blocks=33, max_num_batched_tokens=4
    )
    (partition,) = run(
        scheduler, make_request(4, 4, request_id=0), make_request(4, 4, request_id=1)
    )
    assert partition.free == 64
    assert partition.unusable_free == 0


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_each_position_is_in_exactly_one_class(name, block_size):
    scheduler = make_scheduler(
        allocator=name, block_size=block_size, num_blocks=400 // block_size, preempt_every=4
    )
    rng = np.random.default_rng(3)
    for i in range(40):
        lengths = rng.integers(1, 30, 2).tolist()
        assert scheduler.add(make_request(*lengths, request_id=i)) == []
    partitions = run(scheduler, steps=60)
    assert {p.total for p in partitions} == {(400 // block_size - 1) * block_size}
    assert all(min(classes(p).values()) > 0 for p in partitions)
    assert all(p.unusable_free <= p.free for p in partitions)


# Sharing.


def test_a_shared_block_is_counted_once():
    scheduler = make_scheduler(prefix_caching=True)
    requests = [make_request(13, 4, request_id=i) for i in range(2)]
    run(scheduler, requests[0])
    (partition,) = run(scheduler, requests[1])
    # of 2 × 4 blocks 3 are shared; 13 + 1 and 13 tokens are computed
    assert partition.token_states == 14 + 13 - 12
    assert partition.tail == 2 + 3
    assert partition.total == 64
    assert partition.cached == 0


def test_blocks_of_an_ended_request_are_cached_positions():
    scheduler = make_scheduler(prefix_caching=True)
    run(scheduler, make_request(13, 1))
    assert not scheduler.has_unfinished
    (partition,) = run(scheduler, make_request((100,), request_id=1))
    assert partition.cached == 12  # full blocks only
    assert partition.free == 64 - 12 - 4
    assert (partition.token_states, partition.tail) == (1, 3)


def test_the_tail_of_a_last_block_that_samples_share_is_counted_once():
    scheduler = make_scheduler()
    run(scheduler, make_request(6, 4, n=3))
    usage = scheduler.allocator.usage(0)
    assert usage.num_free == 16 - 2  # shared until they write
    (partition,) = run(scheduler)
    # sample 0 has written into a copy; 1 and 2 have yet to
    assert partition.total == 64
    assert partition.free == (16 - 4) * 4
    assert partition.token_states + partition.tail == 4 * 4
    assert partition.tail == 1 + 2 + 2


@pytest.mark.parametrize("granularity", ["block", "token"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_each_position_is_in_one_class_where_blocks_are_shared(granularity, block_size):
    scheduler = make_scheduler(
        block_size=block_size,
        num_blocks=400 // block_size,
        preempt_every=4,
        prefix_caching=True,
        granularity=granularity,
        max_num_seqs=16,
    )
    rng = np.random.default_rng(3)
    for i in range(40):
        prompt, outputs = rng.integers(1, 30, 2).tolist()
        n = int(rng.integers(1, 4))
        assert scheduler.add(make_request(prompt, outputs, request_id=i, n=n)) == []
    partitions = run(scheduler, steps=60)
    usable = (400 // block_size - 1) * block_size
    assert {p.total for p in partitions} == {usable}
    assert all(min(classes(p).values()) >= 0 for p in partitions)
    assert all(p.reserved == p.internal == p.rounding == 0 for p in partitions)
    assert max(p.cached for p in partitions) > 0
