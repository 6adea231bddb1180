"""Replayed pools are what the pools were, and a stream that breaks the rules is refused."""

import pytest

from paxkv.analysis.event_replay import BlockState, Span, replay
from paxkv.events import Event, EventKind
from tests.event_streams import random_events, sample_events

K = EventKind
FREE, CACHED, OWNED, SHARED = BlockState


@pytest.mark.parametrize("seed", range(30))
def test_final_state_equals_the_pool(seed):
    events, pools = random_events(seed, num_steps=150)
    history = replay(events, (17, 9))
    for group, pool in zip(history.groups, pools, strict=True):
        assert group.refcounts == pool.refcounts
        assert group.has_key == pool.has_key
        assert group.free_blocks == pool.free_blocks


@pytest.mark.parametrize("seed", range(5))
def test_state_at_every_step_is_that_of_the_events_up_to_it(seed):
    events, _ = random_events(seed)
    history = replay(events, (17, 9))
    assert [step.step for step in history.steps] == [*range(1, 61)]
    for step in history.steps:
        before = [event for event in events if event.step <= step.step]
        partial = replay(before, (17, 9))
        assert partial.steps[-1] == step
        for group, then in zip(history.groups, partial.groups, strict=True):
            for block in range(1, group.num_blocks):
                span = [s for s in group.spans[block] if s.step <= step.step][-1]
                assert span.state is then.state(block)
                assert span.owners == then.owners[block]


def test_spans_written_out():
    (group,) = replay(sample_events(), (5,)).groups
    assert group.spans[1:] == [
        [
            Span(0, FREE, ()),
            Span(1, OWNED, ((7, 0),)),
            Span(2, SHARED, ((7, 0), (8, 0))),
            Span(3, CACHED, ()),
            Span(4, OWNED, ((8, 0),)),
        ],
        [Span(0, FREE, ()), Span(1, OWNED, ((7, 0),)), Span(3, FREE, ())],
        [Span(0, FREE, ()), Span(2, OWNED, ((8, 0),)), Span(3, FREE, ())],
        [Span(0, FREE, ())],
    ]
    assert group.peak_used == 3
    assert group.num_used() == 1


def test_counts_of_steps():
    history = replay(sample_events(), (5,))
    counts = {step.step: step.counts[0] for step in history.steps}
    assert counts == {
        0: (4, 0, 0, 0),
        1: (2, 0, 2, 0),
        2: (1, 0, 2, 1),
        3: (3, 1, 0, 0),
        4: (3, 0, 1, 0),
    }
    assert history.steps[-1].now_s == 4.75
    assert (history.first_step, history.last_step) == (0, 4)


def test_without_events_all_is_free():
    history = replay([], (5,))
    assert history.groups[0].free_blocks == [1, 2, 3, 4]
    assert history.first_step == history.last_step == 0


# what comes after: blocks 1 and 2 of request 1, 2 with a key; 3 shared; 4 cached
BEFORE = (
    (K.ALLOCATE, (1, 2, 3), 1),
    (K.CACHE, (2,), None),
    (K.SHARE, (3,), 2),
    (K.ALLOCATE, (4,), 1),
    (K.CACHE, (4,), None),
    (K.RETAIN, (4,), 1),
)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (K.ALLOCATE, {"blocks": (1,), "request_id": 3}, "not free but owned by 1/0"),
        (K.ALLOCATE, {"blocks": (4,), "request_id": 3}, "not free but cached"),
        (K.ALLOCATE, {"blocks": (5, 5), "request_id": 3}, "not free but owned by 3/0"),
        (K.ALLOCATE, {"blocks": (5,)}, "names no request"),
        (K.ALLOCATE, {"blocks": (0,), "request_id": 3}, "block=0 is not in [1, 7)"),
        (K.ALLOCATE, {"blocks": (7,), "request_id": 3}, "block=7 is not in [1, 7)"),
        (K.ALLOCATE, {"blocks": (5,), "request_id": 3, "group": 1}, "group 1 is not one"),
        (K.SHARE, {"blocks": (5,), "request_id": 3}, "is free"),
        (K.SHARE, {"blocks": (1,)}, "names no request"),
        (K.RELEASE, {"blocks": (1,), "request_id": 1}, "two or more"),
        (K.RELEASE, {"blocks": (3,), "request_id": 4}, "request 4/0 must be one of"),
        (K.FREE, {"blocks": (5,)}, "is free: it must have one owner"),
        (K.FREE, {"blocks": (1,), "request_id": 2}, "owned by 1/0: it must have one"),
        (K.FREE, {"blocks": (1,), "request_id": 1, "sample_index": 1}, "owned by 1/0"),
        (K.FREE, {"blocks": (3,), "request_id": 1}, "owned by 1/0, 2/0: it must have"),
        (K.FREE, {"blocks": (2,), "request_id": 1}, "has a key"),
        (K.FREE, {"blocks": (4,)}, "is cached: it must have one owner"),
        (K.RETAIN, {"blocks": (1,), "request_id": 1}, "has no key"),
        (K.CACHE, {"blocks": (2,)}, "has a key already"),
        (K.CACHE, {"blocks": (5,)}, "nobody owns it"),
        (K.EVICT, {"blocks": (1,)}, "is not cached but owned by 1/0"),
        (K.EVICT, {"blocks": (5,)}, "is not cached but free"),
        (K.COPY, {"blocks": (1, 5)}, "block=5 is free: nobody owns it"),
        (K.COPY, {"blocks": (1,)}, "must be (src, dst)"),
        (K.SWAP_IN, {"blocks": (1,), "slots": ()}, "differs from"),
        (K.SWAP_IN, {"blocks": (4,), "slots": (0,)}, "nobody owns it"),
        (K.LOAD, {"blocks": (5,)}, "nobody owns it"),
        (K.STEP, {"step": 2}, "follows one of step 3"),
    ],
)
def test_contradictions_are_refused(kind, fields, says):
    events = [
        Event(kind=kind, step=3, now_s=0.0, blocks=blocks, request_id=request_id)
        for kind, blocks, request_id in BEFORE
    ]
    replay(events, (7,))
    events.append(Event(kind=kind, now_s=0.0, **{"step": 3, **fields}))
    with pytest.raises(ValueError) as caught:
        replay(events, (7,))
    assert str(caught.value).startswith(f"event 7, {kind.value} at step ")
    assert says in str(caught.value)


def test_a_key_may_be_lost_while_the_block_is_owned():
    events = [
        Event(kind=K.ALLOCATE, step=1, now_s=0.0, blocks=(1,), request_id=1),
        Event(kind=K.CACHE, step=1, now_s=0.0, blocks=(1,)),
        Event(kind=K.EVICT, step=1, now_s=0.0, blocks=(1,)),
        Event(kind=K.FREE, step=1, now_s=0.0, blocks=(1,)),
    ]
    (group,) = replay(events, (2,)).groups
    assert group.free_blocks == [1]


def test_a_request_of_several_sequences_may_own_a_block_several_times():
    events = [
        Event(kind=kind, step=step, now_s=0.0, blocks=(1,), request_id=1)
        for step, kind in enumerate([K.ALLOCATE, K.SHARE, K.SHARE, K.RELEASE, K.RELEASE])
    ]
    (group,) = replay(events, (2,)).groups
    assert [len(span.owners) for span in group.spans[1]] == [1, 2, 3, 2, 1]
    assert group.refcounts == [0, 1]


def test_samples_of_one_request_are_owners_of_their_own():
    events = [
        Event(kind=K.ALLOCATE, step=1, now_s=0.0, blocks=(1,), request_id=1),
        Event(kind=K.SHARE, step=1, now_s=0.0, blocks=(1,), request_id=1, sample_index=1),
        Event(kind=K.RELEASE, step=2, now_s=0.0, blocks=(1,), request_id=1),
    ]
    (group,) = replay(events, (2,)).groups
    assert group.owners[1] == ((1, 1),)
    assert group.spans[1][1].state is SHARED
