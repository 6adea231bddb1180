"""The events of a run are enough to rebuild the state of every block."""

import pytest

from paxkv.analysis.event_replay import replay
from paxkv.events import Event, EventKind
from paxkv.sampling_params import SamplingParams
from tests.fakes import make_engine

SHARED = tuple(range(1, 15))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_caching": True},
        {"prefix_caching": True, "granularity": "token", "num_blocks": 14},
        {"prefix_caching": True, "deduplicate": False, "poison": True},
        {"prefix_caching": True, "host_blocks": 4, "num_blocks": 12},
        {"prefix_caching": True, "windows": (None, 5), "num_blocks": 14},
        {"pressure": "preempt_swap", "host_blocks": 16, "preempt_every": 3},
        {"retain": (), "prefix_caching": True, "num_blocks": 14},
    ],
    ids=str,
)
def test_replayed_events_give_the_pool(settings):
    events: list[Event] = []
    engine = make_engine(listener=events.append, **settings)
    pools = engine.scheduler.allocator.pools
    few = SamplingParams(max_tokens=9, ignore_eos=True)
    for index in range(3):
        engine.add((*SHARED, 100 + index), few)
    engine.add(SHARED, SamplingParams(n=3, max_tokens=7, ignore_eos=True))
    engine.add(
        SHARED, SamplingParams(n=2, use_beam_search=True, max_tokens=6, ignore_eos=True)
    )
    step = 0
    while engine.has_unfinished:
        engine.step()
        step += 1
        if step == 4 and 0 not in engine.scheduler.ended:
            engine.fork(0)
        if step == 6 and "prefix_caching" in settings:
            engine.pin_prefix(SHARED)
        if step == 8:
            engine.abort(1)
            if "prefix_caching" in settings:
                engine.unpin_prefix(SHARED)
        check(events, pools)
    check(events, pools)
    ended = [e.request_id for e in events if e.kind is EventKind.FINISH]
    assert sorted(ended) == sorted(e.request_id for e in events if e.kind is EventKind.ADD)


def check(events, pools) -> None:
    history = replay(events, [pool.num_blocks for pool in pools])
    for group, pool in zip(history.groups, pools, strict=True):
        assert list(group.refcounts) == pool.refcounts
        assert sorted(group.free_blocks) == sorted(pool.free_blocks)
        keyed = [node is not None for node in pool.node_of]
        assert [bool(has_key) for has_key in group.has_key] == keyed
