"""Phases and moments of requests, and totals of a run."""

from paxkv.analysis.request_lives import (
    EventTotals,
    Phase,
    event_totals,
    request_lives,
    totals_table,
)
from paxkv.events import Event, EventKind
from tests.event_streams import sample_events

K = EventKind


def test_phases_written_out():
    lives = request_lives(sample_events())
    assert lives[7].phases == [Phase("queued", 0.0, 1.0), Phase("running", 1.0, 3.5)]
    assert lives[8].phases == [
        Phase("queued", 2.0, 2.0),
        Phase("running", 2.0, 3.0),
        Phase("preempted", 3.0, 4.0),
        Phase("running", 4.0, 4.75),  # it had not ended when the log did
    ]


def test_moments_written_out():
    moments = request_lives(sample_events())[8].moments
    assert [moment.text for moment in moments] == [
        "added",
        "admitted, 4 of its tokens found in the cache",
        "hit: 4 tokens of its prompt were in the cache",
        "preempted, swapped out",
        "admitted, 0 of its tokens found in the cache",
    ]
    assert [moment.step for moment in moments] == [2, 2, 2, 3, 4]


def event(kind, now_s, **fields):
    return Event(kind=kind, step=1, now_s=now_s, request_id=1, **fields)


def test_a_request_runs_until_its_last_sample_has_finished():
    life = request_lives(
        [
            event(K.ADD, 0.0),
            event(K.ADMIT, 1.0),
            event(K.FORK, 1.0, detail="1/1"),
            event(K.FINISH, 2.0, detail="LENGTH"),
            event(K.FINISH, 3.0, sample_index=1, detail="STOP_TOKEN"),
        ]
    )[1]
    assert life.phases == [Phase("queued", 0.0, 1.0), Phase("running", 1.0, 3.0)]
    assert life.moments[2].text == "forked into 1/1"
    assert life.moments[-1].text == "sample 1: finished: STOP_TOKEN"


def test_an_id_may_be_given_again_and_an_arrival_dated_late():
    life = request_lives(
        [
            event(K.ADD, 0.0),
            event(K.FINISH, 1.0, detail="ABORTED"),
            event(K.ADD, 5.0),
            event(K.ADMIT, 4.0),
        ]
    )[1]
    assert life.phases == [
        Phase("queued", 0.0, 1.0),
        Phase("queued", 5.0, 5.0),
        Phase("running", 4.0, 5.0),
    ]


def test_totals():
    totals = event_totals(sample_events())
    assert totals == EventTotals(
        num_steps=4,
        num_requests=2,
        num_preemptions=1,
        num_hits=1,
        num_hit_tokens=4,
        evicted=1,
        copied=1,
        swapped_out=1,
        swapped_in=1,
    )
    spilled = Event(kind=K.SPILL, step=1, now_s=0.0, slots=(1, 2))
    loaded = Event(kind=K.LOAD, step=1, now_s=0.0, blocks=(1, 2, 3))
    assert event_totals([spilled, loaded]) == EventTotals(spilled=2, loaded=3)
    assert "blocks swapped out" in totals_table(totals)
