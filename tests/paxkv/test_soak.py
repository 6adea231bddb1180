"""Thousands of requests come and go; nothing may be left behind."""

import numpy as np
import pytest

from paxkv.allocators import ALLOCATORS
from paxkv.invariants import check_invariants
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import make_engine

NUM_BLOCKS = 60


# The contiguous allocators take more steps for as many requests.
@pytest.mark.parametrize(
    "allocator,num_requests",
    [(name, 2_000 if name == "paged" else 400) for name in ALLOCATORS],
)
def test_when_all_have_ended_every_block_is_free(allocator, num_requests):
    rng = np.random.default_rng(17)
    engine = make_engine(
        allocator=allocator,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        check_invariants=False,  # each 50th step below
        preempt_every=11,
    )
    scheduler = engine.scheduler
    reasons, num_added, num_steps = {}, 0, 0
    while num_added < num_requests or engine.has_unfinished:
        while num_added < num_requests and len(scheduler.waiting) < 10:
            prompt = rng.integers(1, 251, rng.integers(0, 30)).tolist()
            max_tokens = int(rng.integers(1, 20))
            engine.add(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
            num_added += 1
        for update in engine.step().updates:
            if update.finish is not None:
                assert update.request_id not in reasons, "ended twice"
                reasons[update.request_id] = update.finish.reason
        if rng.random() < 0.3:
            engine.abort(int(rng.integers(num_added)))
        num_steps += 1
        if num_steps % 50 == 0:
            check_invariants(scheduler)
    check_invariants(scheduler)
    assert len(reasons) == num_requests
    assert set(reasons.values()) == {
        FinishReason.LENGTH,
        FinishReason.ABORTED,
        FinishReason.REJECTED_EMPTY,
    }
    assert scheduler.allocator.usage(0).num_free == NUM_BLOCKS - 1
    assert scheduler.tables.num_free_rows == scheduler.tables.num_rows
    assert scheduler.num_preemptions > 0
