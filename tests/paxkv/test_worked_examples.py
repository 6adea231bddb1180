"""Numbers that the documentation and the PagedAttention paper (2309.06180) work out."""

import numpy as np
import pytest

from paxkv.allocators.buddy import carve
from paxkv.block_pool import BlockPool
from paxkv.types import StepResult
from tests.fakes import FakeExecutor, fake_token, make_request, make_scheduler


def step(scheduler, executor=None):
    plan = scheduler.plan(0.0)
    tokens = np.ones(len(plan.rows), np.int32)
    result = StepResult(tokens=tokens, duration_s=0.0)
    scheduler.commit(plan, executor.run(plan) if executor else result, 0.0)
    return plan


def order_free_blocks(pool, blocks):
    """Makes `blocks` the next that the pool hands out."""
    taken = pool.allocate(pool.num_free)
    pool.free([block for block in taken if block not in blocks])
    pool.free(blocks)


def test_35_tokens_in_blocks_of_16():
    scheduler = make_scheduler(block_size=16, num_blocks=33, max_context=512)
    order_free_blocks(scheduler.allocator.pools[0], [7, 2, 11])
    scheduler.add(make_request(35))
    executor = FakeExecutor(num_blocks=33, block_size=16)
    plan = step(scheduler, executor)
    assert scheduler.tables.blocks(0, int(plan.rows[0])) == [7, 2, 11]
    (partition,) = plan.partitions
    assert (partition.token_states, partition.tail) == (35, 13)
    assert partition.token_states + partition.tail == 48
    # logical block 1 is physical block 2, and reading back finds the order again
    assert executor.pools[0, 2].tolist() == list(range(17, 33))
    (request,) = plan.requests
    assert request.output_ids == [fake_token(np.arange(1, 36))]


def test_a_reservation_of_512_leaves_477_unused():
    scheduler = make_scheduler(
        allocator="contiguous_max", block_size=16, num_blocks=33, max_context=512
    )
    scheduler.add(make_request(35))
    (partition,) = step(scheduler).partitions
    assert partition.reserved + partition.internal == 477


@pytest.mark.parametrize(
    "num_prompt,num_outputs,max_context,never_used", [(7, 3, 2048, 2038), (3, 2, 512, 507)]
)
def test_never_used_slots_of_the_papers_figure_3(
    num_prompt, num_outputs, max_context, never_used
):
    scheduler = make_scheduler(
        allocator="contiguous_max",
        block_size=1,
        num_blocks=max_context + 1,
        max_context=max_context,
    )
    scheduler.add(make_request(num_prompt, max_tokens=num_outputs))
    step(scheduler)
    (partition,) = step(scheduler).partitions
    assert partition.internal == never_used
    assert partition.token_states + partition.reserved == num_prompt + num_outputs


def test_block_table_of_the_papers_figure_6():
    """Block size 4, a prompt of 7 tokens: blocks 7 and 1, then 3 for the ninth token."""
    scheduler = make_scheduler(block_size=4, num_blocks=10)
    order_free_blocks(scheduler.allocator.pools[0], [7, 1, 3])
    scheduler.add(make_request(7))
    tables, filled = [], []
    for _ in range(3):
        plan = step(scheduler)
        tables.append(scheduler.tables.blocks(0, int(plan.rows[0])))
        filled.append(int(plan.starts[0] + plan.lengths[0]))
    assert tables == [[7, 1], [7, 1], [7, 1, 3]]
    assert filled == [7, 8, 9]


def test_a_shared_prefix_of_4992_tokens_is_312_blocks_held_once():
    pool = BlockPool(1_000)
    prefix = pool.allocate(4_992 // 16)
    assert len(prefix) == 312
    suffixes = []
    for owner in range(100):
        if owner > 0:
            pool.share(prefix)
        suffixes.append(pool.allocate(3))
    assert 999 - pool.num_free == 312 + 100 * 3
    assert {pool.refcounts[block] for block in prefix} == {100}
    for suffix in suffixes:
        pool.free([*prefix, *suffix])
    assert pool.num_free == 999


def test_appending_a_block_after_shared_blocks_copies_nothing():
    scheduler = make_scheduler(block_size=4)
    scheduler.add(make_request(8))
    executor = FakeExecutor(num_blocks=17, block_size=4)
    plan = step(scheduler, executor)
    tables, paged = scheduler.tables, scheduler.allocator
    shared = tables.blocks(0, int(plan.rows[0]))
    held = executor.pools[0, shared].copy()

    row = tables.acquire()
    paged.pools[0].share(shared)
    tables.append(0, row, shared)
    assert paged.extend(row, 9)
    assert tables.blocks(0, row)[:2] == shared
    assert len(tables.blocks(0, row)) == 3
    assert (executor.pools[0, shared] == held).all()
    assert [paged.pools[0].refcounts[block] for block in tables.blocks(0, row)] == [2, 2, 1]
    paged.release(row)
    assert tables.blocks(0, int(plan.rows[0])) == shared
    assert [paged.pools[0].refcounts[block] for block in shared] == [1, 1]


def test_arena_of_983_units_as_the_papers_authors_carve_it():
    sizes = [size for _, size in carve(983, largest=128)]
    assert sizes == [128] * 7 + [64, 16, 4, 2, 1]


def trace(allocator, block_size, max_context=30):
    """(running, blocks held, positions never written, tail) of each step."""
    scheduler = make_scheduler(
        allocator=allocator,
        block_size=block_size,
        num_blocks=1 + 120 // block_size,
        max_context=max_context,
        max_num_batched_tokens=16,
        watermark=0.0,
    )
    rng = np.random.default_rng(9)
    for i in range(25):
        scheduler.add(make_request(*rng.integers(1, 15, 2).tolist(), request_id=i))
    steps = []
    while scheduler.has_unfinished:
        plan = step(scheduler)
        (partition,) = plan.partitions
        held = partition.total - partition.free
        never_written = held - partition.token_states
        steps.append((plan.num_running, held // block_size, never_written, partition.tail))
    return steps


def test_paged_with_a_block_as_long_as_the_context_is_contiguous_max():
    paged, contiguous = trace("paged", 30), trace("contiguous_max", 30)
    assert [numbers[:3] for numbers in paged] == [numbers[:3] for numbers in contiguous]
    assert max(numbers[0] for numbers in paged) == 4


def test_blocks_of_one_token_have_no_tail():
    assert {tail for *_, tail in trace("paged", 1)} == {0}
