"""Replays on a fake model: everything ends, clocks count their own engine only."""

import pytest

from paxkv.engine import Engine
from paxkv.replay import (
    Kept,
    Replay,
    Replica,
    Stopwatch,
    differing_requests,
    rejections,
    serve_in_turns,
)
from paxkv.types import FinishReason
from paxkv.workloads.sessions import Session, Turn
from tests.fakes import FakeClock, FakeExecutor, fake_completion, make_scheduler


def make_replay(
    sessions: tuple[Session, ...],
    source: FakeClock,
    duration_s: float = 1.0,
    concurrency: int | None = None,
    **settings,
) -> tuple[Replay, Kept]:
    scheduler = make_scheduler(**settings)
    allocator = scheduler.allocator
    clock = Stopwatch(source)
    executor = FakeExecutor(
        allocator.usage(0).num_blocks,
        allocator.block_size,
        clock=source,
        duration_s=duration_s,
    )
    kept = Kept()
    replica = Replica(engine=Engine(scheduler, executor, clock), clock=clock)
    return Replay([replica], sessions, kept, concurrency=concurrency), kept


def turn(num_prompt: int, max_tokens: int, think_s: float = 0.0) -> Turn:
    return Turn(
        prompt_ids=tuple(range(1, num_prompt + 1)), max_tokens=max_tokens, think_s=think_s
    )


def item(num_prompt: int, max_tokens: int, arrival_s: float = 0.0) -> Session:
    return Session(arrival_s=arrival_s, turns=(turn(num_prompt, max_tokens),))


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
    replays, all_kept = zip(
        *(make_replay(items, source, allocator=name) for name in names), strict=True
    )
    ended = []
    serve_in_turns([*replays], ended.append)
    assert sum(ended) == len(items) * len(replays)
    for replay, kept in zip(replays, all_kept, strict=True):
        assert replay.done
        assert len(kept.requests) == len(items)
        for index, session in enumerate(items):
            (work,) = session.turns
            expected = fake_completion(work.prompt_ids, work.max_tokens)
            assert tuple(kept.outputs[index]) == expected
        assert differing_requests(all_kept[0], kept) == []
        # the others' steps are not on this one's clock
        assert replay.now_s == pytest.approx(len(kept.steps))
    assert source() == pytest.approx(sum(len(kept.steps) for kept in all_kept))
    all_kept[0].outputs[5][1] += 1
    assert differing_requests(all_kept[0], all_kept[1]) == [5]


def test_the_clock_that_is_behind_steps_next():
    source = FakeClock()
    fast, fast_kept = make_replay((item(2, 40),), source, duration_s=1.0)
    slow, _ = make_replay((item(2, 40),), source, duration_s=3.0)
    for _ in range(20):
        min((fast, slow), key=lambda replay: replay.now_s).advance()
        assert abs(fast.now_s - slow.now_s) <= 3.0
    assert len(fast_kept.steps) == 15


def test_arrivals_wait_for_their_time_and_idle_time_is_skipped():
    items = (item(3, 2, arrival_s=0.0), item(3, 2, arrival_s=50.0), item(3, 2, 50.5))
    replay, kept = make_replay(items, FakeClock())
    serve_in_turns([replay])
    by_id = {request.request_id: request for request in kept.requests}
    assert by_id[0].finish_s == 2.0
    assert by_id[1].first_scheduled_s == 50.0
    assert by_id[2].first_scheduled_s == 51.0  # came during a step
    assert by_id[2].arrival_s == 50.5


def test_a_turn_follows_the_end_of_the_one_before_and_all_that_was_said():
    session = Session(arrival_s=1.0, turns=(turn(3, 2), turn(2, 3, think_s=4.0)))
    replay, kept = make_replay((session, item(4, 1, arrival_s=30.0)), FakeClock())
    serve_in_turns([replay])
    first, second, other = sorted(kept.requests, key=lambda one: one.request_id)
    assert first.finish_s == 3.0
    assert second.arrival_s == 7.0
    assert second.num_prompt_tokens == 3 + 2 + 2
    prompt = (1, 2, 3, *kept.outputs[0], 1, 2)
    assert tuple(kept.outputs[1]) == fake_completion(prompt, 3)
    assert other.arrival_s == 30.0


def test_a_prompt_keeps_the_newest_tokens_of_its_conversation():
    session = Session(
        arrival_s=0.0, turns=(turn(3, 2), turn(2, 1), turn(1, 1)), max_prompt_tokens=4
    )
    replay, kept = make_replay((session,), FakeClock())
    serve_in_turns([replay])
    said = (1, 2, 3, *kept.outputs[0], 1, 2)
    assert tuple(kept.outputs[1]) == fake_completion(said[-4:], 1)
    said = (*said, *kept.outputs[1], 1)
    assert tuple(kept.outputs[2]) == fake_completion(said[-4:], 1)


def test_a_closed_loop_has_as_many_sessions_as_users():
    items = tuple(item(2, 3) for _ in range(7))
    replay, kept = make_replay(items, FakeClock(), concurrency=2)
    serve_in_turns([replay])
    assert max(step.num_running + step.num_waiting for step in kept.steps) == 2
    ends = [request.finish_s for request in kept.requests]
    arrivals = sorted(request.arrival_s for request in kept.requests)
    assert arrivals == [0.0, 0.0, *ends[:5]]  # each begins when one ends
    with pytest.raises(ValueError, match="concurrency=0 users"):
        make_replay(items, FakeClock(), concurrency=0)


def test_what_follows_a_turn_that_was_not_served_is_counted():
    session = Session(arrival_s=0.0, turns=(turn(64, 1), turn(2, 1), turn(2, 1)))
    replay, kept = make_replay((session, item(3, 2)), FakeClock(), concurrency=1)
    serve_in_turns([replay])
    assert replay.feed.num_skipped == 2
    assert [finish.reason for finish in kept.finishes.values()] == [
        FinishReason.REJECTED_TOO_LONG,
        FinishReason.LENGTH,
    ]


def test_a_request_that_never_fits_is_told_and_does_not_stop_the_others():
    items = (item(3, 2), item(64, 1), item(4, 3))
    replay, kept = make_replay(items, FakeClock())
    serve_in_turns([replay])
    reasons = [finish.reason for finish in kept.finishes.values()]
    assert reasons == [
        FinishReason.LENGTH,
        FinishReason.REJECTED_TOO_LONG,
        FinishReason.LENGTH,
    ]
    assert rejections(kept) == {1: kept.finishes[1].message}
    replay, roomy = make_replay((item(3, 2), item(8, 1), item(4, 3)), FakeClock())
    serve_in_turns([replay])
    assert rejections(roomy) == {}
    assert differing_requests(kept, roomy) == []  # only what both served can differ
    roomy.outputs[2][0] += 1
    assert differing_requests(kept, roomy) == [2]


def test_a_lost_request_is_an_error():
    replay, _ = make_replay((item(3, 2),), FakeClock())
    replay.advance()
    replay.replicas[0].engine.abort(0)
    replay.replicas[0].engine.step()  # somebody else takes the news
    with pytest.raises(RuntimeError, match=r"requests \[0\] did not end"):
        serve_in_turns([replay])


def test_replicas_step_in_the_order_of_their_clocks():
    source = FakeClock()
    kept = Kept()
    replicas = [
        make_replay((), source, duration_s=duration_s)[0].replicas[0]
        for duration_s in (1.0, 3.0)
    ]
    items = tuple(item(2, 4, arrival_s=float(index)) for index in range(8))
    seen = []

    def route(arrival, among):
        seen.append((arrival.arrival_s, *(replica.clock() for replica in among)))
        return len(seen) % 2

    replay = Replay(replicas, items, kept, route=route)
    while not replay.done:
        replay.advance()
    assert len(kept.requests) == 8
    # who works is not behind an arrival when it is routed, and at most a step ahead
    for arrival_s, *clocks in seen[2:]:
        assert all(arrival_s <= now_s < arrival_s + 3.0 for now_s in clocks)
