from itertools import count

import pytest

from paxkv.request_options import RequestOptions
from paxkv.workloads.sessions import Session, Turn
from paxkv.workloads.tokens import Segment, fresh_key, hash_key
from paxkv.workloads.trace_plans import trace_plans
from paxkv.workloads.traces.rows import TraceRow
from paxkv.workloads.workload_config import WorkloadConfig


def plans(*records, arrival="trace", **settings):
    config = WorkloadConfig(
        num_requests=None,
        structure="trace",
        trace_path="t.jsonl",
        arrival=arrival,
        **settings,
    )
    return list(trace_plans(records, config, map(float, count())))


def row(arrival_s, input_tokens=10, **fields):
    return TraceRow(
        arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=3, **fields
    )


def segments_of(plan):
    return [list(turn.segments) for turn in plan.turns]


def test_times_are_the_traces_and_the_rate_scales_them():
    rows = [row(0.0), row(1.0), row(4.0)]
    assert [p.arrival_s for p in plans(*rows)] == [0.0, 1.0, 4.0]
    assert [p.arrival_s for p in plans(*rows, rate_scale=4.0)] == [0.0, 0.25, 1.0]
    assert [p.arrival_s for p in plans(*rows, arrival="poisson")] == [0.0, 1.0, 2.0]


def test_a_trace_without_times_needs_an_arrival():
    with pytest.raises(ValueError, match="'t.jsonl' has no times; use 'poisson'"):
        plans(row(None))
    assert len(plans(row(None), arrival="at_once")) == 1


def test_prompts_that_are_only_long_share_nothing():
    first, second = plans(row(0.0), row(1.0))
    assert segments_of(first) == [[Segment(num_tokens=10, key=fresh_key(0, 0))]]
    assert segments_of(second) == [[Segment(num_tokens=10, key=fresh_key(1, 0))]]


@pytest.mark.parametrize(
    ("input_tokens", "lengths"),
    [(9, [4, 4, 1]), (8, [4, 4]), (3, [3]), (12, [4, 4, 4])],
)
def test_hashes_are_blocks_of_the_prompt(input_tokens, lengths):
    (plan,) = plans(row(0.0, input_tokens, hash_ids=(7, 8, 7), hash_block_tokens=4))
    keys = [hash_key(7), hash_key(8), hash_key(7)]
    assert segments_of(plan) == [
        [Segment(num_tokens=n, key=k) for n, k in zip(lengths, keys, strict=False)]
    ]


def test_what_hashes_do_not_cover_is_shared_by_nothing():
    (plan,) = plans(row(0.0, 10, hash_ids=(7, 8), hash_block_tokens=4))
    assert segments_of(plan)[0][2] == Segment(num_tokens=2, key=fresh_key(0, 0))


def test_known_tokens_are_kept():
    (plan,) = plans(row(0.0, 2, prompt_ids=(5, 6)))
    assert segments_of(plan) == [[Segment(num_tokens=2, ids=(5, 6))]]


def test_rows_of_a_conversation_are_its_turns():
    rows = [row(None, session=name) for name in ("a", "a", "a", "b", None, None)]
    settings = {"arrival": "poisson", "max_prompt_tokens": 8}
    conversations = plans(*rows, max_turns=2, **settings)
    assert [len(plan.turns) for plan in conversations] == [2, 1, 1, 1]
    assert [len(plan.turns) for plan in plans(*rows, **settings)] == [1, 1, 1, 1]
    assert [s[0].key for s in segments_of(conversations[0])] == [
        fresh_key(0, 0),
        fresh_key(0, 1),
    ]
    assert all(plan.max_prompt_tokens == 8 for plan in conversations)


def test_rows_with_times_are_requests_of_their_own():
    assert len(plans(row(0.0, session="a"), row(1.0, session="a"), max_turns=9)) == 2


def test_sessions_of_this_projects_format_keep_all_they_say():
    turns = (Turn(prompt_ids=(1, 2), max_tokens=5, think_s=0.5),)
    session = Session(
        arrival_s=3.0,
        turns=turns,
        options=RequestOptions(tenant="a"),
        num_samples=2,
        use_beam_search=True,
        max_prompt_tokens=7,
    )
    (plan,) = plans(session, rate_scale=2.0, num_samples=9)
    assert plan.arrival_s == 1.5
    assert segments_of(plan) == [[Segment(num_tokens=2, ids=(1, 2))]]
    assert (plan.turns[0].output_tokens, plan.turns[0].think_s) == (5, 0.5)
    assert plan.options.tenant == "a" and plan.max_prompt_tokens == 7
    assert plan.num_samples == 2 and plan.use_beam_search
