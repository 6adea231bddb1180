"""Replays on a fake model: everything ends, clocks count their own engine only."""

import pytest

from paxkv.engine import Engine
from paxkv.replay import (
    Replay,
    Stopwatch,
    differing_requests,
    rejections,
    serve_in_turns,
)
from paxkv.types import FinishReason
from paxkv.workload import WorkItem
from tests.fakes import FakeClock, FakeExecutor, fake_completion, make_scheduler


def make_replay(
    items: tuple[WorkItem, ...], source: FakeClock, duration_s: float = 1.0, **settings
) -> Replay:
    scheduler = make_scheduler(**settings)
    allocator = scheduler.allocator
    clock = Stopwatch(source)
    executor = FakeExecutor(
        allocator.usage(0).num_blocks,
        allocator.block_size,
        clock=source,
        duration_s=duration_s,
    )
    return Replay(Engine(scheduler, executor, clock), items, clock)


def item(num_prompt: int, max_tokens: int, arrival_s: float = 0.0) -> WorkItem:
    return WorkItem(
        prompt_ids=tuple(range(1, num_prompt + 1)),
        max_tokens=max_tokens,
        arrival_s=arrival_s,
    )


def test_stopwatch_stands_still_outside_running():
    source = FakeClock(100.0)
    clock = Stopwatch(source)
    with clock.running():
        source.advance(2.0)
        assert clock() == 2.0
    source.advance(50.0)
    assert clock() == 2.0
    clock.skip_to(5.0)
    clock.skip_to(1.0)  # the past stays
    with clock.running():
        source.advance(1.0)
    assert clock() == 6.0


def test_all_systems_give_the_same_tokens_in_turns():
    items = tuple(item(3 + index % 5, 4 + index) for index in range(12))
    source = FakeClock()
    names = ("contiguous_max", "contiguous_pow2", "contiguous_oracle", "paged")
    replays = [make_replay(items, source, allocator=name) for name in names]
    ended = []
    serve_in_turns(replays, ended.append)
    assert sum(ended) == len(items) * len(replays)
    for replay in replays:
        assert replay.done
        assert len(replay.requests) == len(items)
        for index, work in enumerate(items):
            expected = fake_completion(work.prompt_ids, work.max_tokens)
            assert tuple(replay.outputs[index]) == expected
        assert differing_requests(replays[0], replay) == []
        # the others' steps are not on this one's clock
        assert replay.clock() == pytest.approx(len(replay.steps))
    assert source() == pytest.approx(sum(len(replay.steps) for replay in replays))
    replays[0].outputs[5][1] += 1
    assert differing_requests(replays[0], replays[1]) == [5]


def test_the_clock_that_is_behind_steps_next():
    source = FakeClock()
    fast = make_replay((item(2, 40),), source, duration_s=1.0)
    slow = make_replay((item(2, 40),), source, duration_s=3.0)
    for _ in range(20):
        min((fast, slow), key=lambda replay: replay.clock()).advance()
        assert abs(fast.clock() - slow.clock()) <= 3.0
    assert len(fast.steps) == 15


def test_arrivals_wait_for_their_time_and_idle_time_is_skipped():
    items = (item(3, 2, arrival_s=50.0), item(3, 2, arrival_s=0.0), item(3, 2, 50.5))
    replay = make_replay(items, FakeClock())
    serve_in_turns([replay])
    by_id = {request.request_id: request for request in replay.requests}
    assert by_id[1].finish_s == 2.0
    assert by_id[0].first_scheduled_s == 50.0
    assert by_id[2].first_scheduled_s == 51.0  # came during a step
    assert by_id[2].arrival_s == 50.5


def test_a_request_that_never_fits_is_told_and_does_not_stop_the_others():
    items = (item(3, 2), item(64, 1), item(4, 3))
    replay = make_replay(items, FakeClock())
    serve_in_turns([replay])
    reasons = [finish.reason for finish in replay.finishes]
    assert reasons == [
        FinishReason.LENGTH,
        FinishReason.REJECTED_TOO_LONG,
        FinishReason.LENGTH,
    ]
    assert rejections(replay) == {1: replay.finishes[1].message}
    roomy = make_replay((item(3, 2), item(8, 1), item(4, 3)), FakeClock())
    serve_in_turns([roomy])
    assert rejections(roomy) == {}
    assert differing_requests(replay, roomy) == []  # only what both served can differ
    roomy.outputs[2][0] += 1
    assert differing_requests(replay, roomy) == [2]


def test_a_lost_request_is_an_error():
    replay = make_replay((item(3, 2),), FakeClock())
    replay.advance()
    replay.engine.abort(0)
    replay.engine.step()  # somebody else takes the news
    with pytest.raises(RuntimeError, match=r"requests \[0\] did not end"):
        serve_in_turns([replay])
