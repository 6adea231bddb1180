import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.request_options import RequestOptions
from paxkv.workloads.plans import (
    PlannedTurn,
    SessionPlan,
    clip,
    context_needed,
    scale,
    session_of,
)
from paxkv.workloads.tokens import Segment, prompt_ids


def plan_of(*turns, cap=None):
    """Turns are pairs of prompt lengths, by segment, and an output length."""
    planned = tuple(
        PlannedTurn(
            segments=tuple(
                Segment(num_tokens=n, key=100 * i + j) for j, n in enumerate(lengths)
            ),
            output_tokens=output,
        )
        for i, (lengths, output) in enumerate(turns)
    )
    return SessionPlan(arrival_s=0.0, turns=planned, max_prompt_tokens=cap)


def lengths_of(plan):
    return [
        ([segment.num_tokens for segment in turn.segments], turn.output_tokens)
        for turn in plan.turns
    ]


def test_the_context_is_that_of_the_longest_turn():
    assert context_needed(plan_of(([3, 4], 5))) == 12
    assert context_needed(plan_of(([3, 4], 5), ([2], 1))) == 15
    # the second turn's prompt holds the newest 6 of 14 tokens
    assert context_needed(plan_of(([3, 4], 5), ([2], 1), cap=6)) == 11
    assert context_needed(plan_of(([3], 5), ([20], 9), cap=6)) == 15


def test_scaling_rounds_down_and_keeps_one():
    scaled = scale(plan_of(([100, 1], 50), ([3], 9), cap=40), 512, 2048)
    assert lengths_of(scaled) == [([25, 1], 12), ([1], 2)]
    assert scaled.max_prompt_tokens == 10
    assert [s.key for turn in scaled.turns for s in turn.segments] == [0, 1, 100]


def test_clipping_cuts_the_end_of_prompts():
    assert lengths_of(clip(plan_of(([3, 4], 5)), 12)) == [([3, 4], 5)]
    assert lengths_of(clip(plan_of(([3, 4], 5)), 10)) == [([3, 2], 5)]
    assert lengths_of(clip(plan_of(([3, 4], 5)), 7)) == [([2], 5)]
    assert lengths_of(clip(plan_of(([3, 4], 5)), 4)) == [([1], 3)]


def test_clipping_ends_a_session_whose_context_is_full():
    plan = plan_of(([3, 4], 5), ([2], 4), ([5], 5))
    assert lengths_of(clip(plan, 18)) == [([3, 4], 5), ([2], 4)]
    assert lengths_of(clip(plan, 15)) == [([3, 4], 5), ([1], 2)]
    assert lengths_of(clip(plan, 13)) == [([3, 4], 5)]


def test_clipping_under_a_cap_shortens_outputs_only():
    plan = plan_of(([30], 20), ([2], 4), ([5], 50), cap=10)
    assert lengths_of(clip(plan, 16)) == [([30], 6), ([2], 4), ([5], 6)]


TURNS = st.lists(
    st.tuples(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 60)),
    min_size=1,
    max_size=4,
)


@given(TURNS, st.integers(2, 100), st.none() | st.integers(1, 50))
def test_what_is_clipped_fits_and_loses_nothing_that_fitted(turns, max_context, cap):
    plan = plan_of(*turns, cap=cap)
    clipped = clip(plan, max_context)
    assert clipped.turns
    assert context_needed(clipped) <= max_context
    assert all(turn.input_tokens and turn.output_tokens for turn in clipped.turns)
    if context_needed(plan) <= max_context:
        assert clipped == plan


def test_a_session_has_the_plans_tokens_and_settings():
    plan = SessionPlan(
        arrival_s=2,
        turns=plan_of(([3, 4], 5), ([2], 1)).turns,
        max_prompt_tokens=9,
        options=RequestOptions(tenant="a"),
        num_samples=4,
        use_beam_search=True,
    )
    session = session_of(plan, vocab_size=1000, seed=3)
    expected = [prompt_ids(turn.segments, vocab_size=1000, seed=3) for turn in plan.turns]
    assert [turn.prompt_ids for turn in session.turns] == expected
    assert [turn.max_tokens for turn in session.turns] == [5, 1]
    assert session.arrival_s == pytest.approx(2.0)
    assert session.options.tenant == "a" and session.num_samples == 4
    assert session.use_beam_search and session.max_prompt_tokens == 9
