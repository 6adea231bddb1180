"""Beam search: against transformers, against exhaustive search, and what it refuses."""

import functools
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.beam import BeamParams, BeamSearch, Candidates, Hypothesis
from tests.dense import dense_logits
from tests.paxkv.models.hf_fixtures import decoder_of

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/beam/expected.json"
EXPECTED = json.loads(FIXTURE.read_text())
EARLY_STOPPING = (True, False, "never")
TOLERANCE = 1e-4  # of scores; those of penalties < 0 are multiples of the sum
SMALLEST_GAP = 5e-5  # of the scores that decided; ours differ by less than 2e-5

DEEP = 5_000  # tokens; python recurses 1,000 calls deep

# All tokens that may follow some, best first.
Continuations = Callable[[tuple[int, ...]], list[tuple[int, float]]]


def params_of(**changes: Any) -> BeamParams:
    values: dict[str, Any] = dict(
        width=2,
        num_return=1,
        max_tokens=4,
        length_penalty=1.0,
        early_stopping=False,
        stop_token_ids=frozenset(),
    )
    return BeamParams(**values | changes)


def searched(
    params: BeamParams,
    continuations: Continuations,
    num_candidates: int | None = None,
    num_steps: int | None = None,
) -> BeamSearch:
    """A search driven to its end or for `num_steps`, with every step's result checked."""
    search = BeamSearch(params)
    limit = num_candidates or search.num_candidates
    live: list[tuple[int, ...]] = [()]
    cumulative: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in itertools.count() if num_steps is None else range(num_steps):
        rows = [continuations(tokens)[:limit] for tokens in live]
        extensions = search.advance(rows)
        assert len(extensions) <= params.width
        before, live = live, []
        for parent, token_id, logprob in extensions:
            live.append((*before[parent], token_id))
            assert token_id not in params.stop_token_ids
            step = dict(rows[parent])[token_id]
            cumulative[live[-1]] = cumulative[before[parent]] + step
            assert logprob == pytest.approx(cumulative[live[-1]])
        logprobs = [extension.cumulative_logprob for extension in extensions]
        assert logprobs == sorted(logprobs, reverse=True)
        assert len(set(live)) == len(live)
        if not live:
            break
    return search


def random_tree(seed: int, vocab_size: int) -> Continuations:
    """Normalised log-probabilities that depend on the whole history."""

    @functools.cache
    def continuations(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        rng = random.Random(repr((seed, tokens)))
        logits = [rng.gauss(0.0, 1.5) for _ in range(vocab_size)]
        total = math.log(sum(math.exp(x) for x in logits))
        return sorted(enumerate(x - total for x in logits), key=lambda pair: -pair[1])

    return continuations


def every_hypothesis(
    params: BeamParams, continuations: Continuations
) -> list[tuple[tuple[int, ...], float]]:
    """All sequences that can be generated, and their scores; best first."""
    found: list[tuple[tuple[int, ...], float]] = []
    growing: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while growing:
        tokens, before = growing.pop()
        for token_id, logprob in continuations(tokens):
            longer, total = (*tokens, token_id), before + logprob
            if token_id in params.stop_token_ids or len(longer) == params.max_tokens:
                found.append((longer, total / len(longer) ** params.length_penalty))
            else:
                growing.append((longer, total))
    return sorted(found, key=lambda pair: -pair[1])


random_params = st.builds(
    lambda width, **rest: params_of(width=width, num_return=width, **rest),
    width=st.integers(1, 5),
    max_tokens=st.integers(1, 6),
    length_penalty=st.sampled_from((-1.0, 0.0, 0.5, 1.0, 2.0)),
    early_stopping=st.sampled_from(EARLY_STOPPING),
    stop_token_ids=st.frozensets(st.integers(0, 7), max_size=3),
)
seeds = st.integers(0, 10**6)


def dense_continuations(prompt_ids: tuple[int, ...]) -> Continuations:
    """What the fixture's model says, by attention over the whole sequence."""

    @functools.cache
    def continuations(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        logits = dense_logits(decoder_of(EXPECTED["model"]), prompt_ids + tokens)[-1]
        logprobs = logits - np.logaddexp.reduce(logits)
        order = np.argsort(-logprobs, kind="stable")
        return [(int(i), float(logprobs[i])) for i in order]

    return continuations


def cases_of(prompt: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(EXPECTED["fields"], case, strict=True)) for case in prompt["cases"]]


@pytest.mark.parametrize("prompt", EXPECTED["prompts"], ids=lambda prompt: prompt["seed"])
def test_finds_what_transformers_finds(prompt):
    continuations = dense_continuations(tuple(prompt["prompt_ids"]))
    for case in cases_of(prompt):
        sequences, scores = case.pop("sequences"), case.pop("scores")
        case["stop_token_ids"] = frozenset(case["stop_token_ids"])
        params = params_of(max_tokens=EXPECTED["max_tokens"], **case)
        found = searched(params, continuations).hypotheses()
        assert [list(each.token_ids) for each in found] == sequences, case
        for each, score in zip(found, scores, strict=True):
            factor = len(each.token_ids) ** -min(params.length_penalty, 0)
            assert each.score == pytest.approx(score, rel=0, abs=TOLERANCE * factor), case
            stopped = each.token_ids[-1] in params.stop_token_ids
            assert each.ended_by_stop_token == stopped


def test_fixture_is_decisive_and_its_options_matter():
    assert min(prompt["min_gap"] for prompt in EXPECTED["prompts"]) > SMALLEST_GAP
    lengths, best = set(), {name: {} for name in ("early_stopping", "length_penalty")}
    for case in itertools.chain.from_iterable(map(cases_of, EXPECTED["prompts"])):
        sequences = case.pop("sequences")
        lengths |= {len(sequence) for sequence in sequences}
        del case["scores"], case["num_return"]
        for name, found in best.items():
            others = str({key: case[key] for key in case if key != name})
            found.setdefault(others, set()).add(str(sequences[0]))
    assert len(lengths) >= EXPECTED["max_tokens"] // 2
    for found in best.values():
        assert any(len(results) > 1 for results in found.values())


@given(
    seeds,
    st.integers(2, 3),
    st.integers(1, 4),
    st.sampled_from((-1.0, 0.0, 1.0, 2.0)),
    st.sampled_from(EARLY_STOPPING),
    st.frozensets(st.integers(0, 2), max_size=2),
)
def test_wide_enough_is_exhaustive(seed, vocab_size, max_tokens, penalty, early, stops):
    tree = random_tree(seed, vocab_size)
    width = vocab_size**max_tokens + 1  # of which no search can be full
    params = params_of(
        width=width,
        num_return=width,
        max_tokens=max_tokens,
        length_penalty=penalty,
        early_stopping=early,
        stop_token_ids=stops,
    )
    found = searched(params, tree).hypotheses()
    best = every_hypothesis(params, tree)
    assert [each.token_ids for each in found] == [tokens for tokens, _ in best]
    np.testing.assert_allclose([each.score for each in found], [s for _, s in best])


@given(seeds, random_params)
def test_hypotheses_are_distinct_scored_and_best_first(seed, params):
    found = searched(params, random_tree(seed, 9)).hypotheses()
    assert len(found) == params.num_return
    assert len({each.token_ids for each in found}) == len(found)
    assert [each.score for each in found] == sorted((e.score for e in found), reverse=True)
    for each in found:
        length = len(each.token_ids)
        assert each.score == each.cumulative_logprob / length**params.length_penalty
        assert each.ended_by_stop_token == (each.token_ids[-1] in params.stop_token_ids)
        assert each.ended_by_stop_token or length == params.max_tokens
        assert not params.stop_token_ids & set(each.token_ids[:-1])


@given(seeds, random_params)
def test_more_candidates_than_asked_change_nothing(seed, params):
    tree = random_tree(seed, 9)
    asked, all_given = searched(params, tree), searched(params, tree, num_candidates=9)
    assert asked.hypotheses() == all_given.hypotheses()


@given(seeds, random_params, st.integers(1, 5))
def test_num_return_takes_the_best_of_the_same(seed, params, num_return):
    tree = random_tree(seed, 9)
    fewer = replace(params, num_return=min(num_return, params.width))
    found = searched(fewer, tree).hypotheses()
    assert found == searched(params, tree).hypotheses()[: fewer.num_return]


@given(seeds, random_params)
def test_waiting_longer_never_finds_worse(seed, params):
    tree = random_tree(seed, 9)
    waits = [replace(params, early_stopping=value) for value in EARLY_STOPPING]
    scores = [[e.score for e in searched(each, tree).hypotheses()] for each in waits]
    assert np.all(np.diff(scores, axis=0) >= 0)


@given(seeds, st.integers(1, 6), st.frozensets(st.integers(0, 7), max_size=3))
def test_width_1_that_stops_early_is_greedy(seed, max_tokens, stops):
    tree = random_tree(seed, 9)
    greedy: list[int] = []
    while len(greedy) < max_tokens and not stops & set(greedy):
        greedy.append(tree(tuple(greedy))[0][0])
    params = params_of(
        width=1, max_tokens=max_tokens, early_stopping=True, stop_token_ids=stops
    )
    (found,) = searched(params, tree).hypotheses()
    assert found.token_ids == tuple(greedy)


@given(seeds, random_params, st.integers(0, 5))
def test_cut_off_in_the_middle(seed, params, num_steps):
    """Sorted and full as at the end, and live beams are as long as the steps made."""
    search = searched(params, random_tree(seed, 9), num_steps=num_steps)
    found = search.hypotheses()
    assert len(found) == (params.num_return if num_steps else 1)
    assert [each.score for each in found] == sorted((e.score for e in found), reverse=True)
    for each in found:
        if not each.ended_by_stop_token:
            assert len(each.token_ids) == min(num_steps, params.max_tokens)
    assert search.hypotheses() == found


def row(*logprobs: float) -> Candidates:
    return tuple(enumerate(logprobs))


def test_before_the_first_step_the_result_is_empty():
    (found,) = BeamSearch(params_of()).hypotheses()
    assert found == Hypothesis(
        token_ids=(), score=0.0, cumulative_logprob=0.0, ended_by_stop_token=False
    )


def test_a_stop_token_below_the_best_width_is_no_hypothesis():
    """Of width 2, token 2 stops: third it is dropped, second it counts."""
    for logprobs, ended in (((-1.0, -2.0, -3.0), False), ((-1.0, -4.0, -3.0), True)):
        best_first = sorted(row(*logprobs), key=lambda pair: -pair[1])
        search = BeamSearch(params_of(num_return=2, stop_token_ids=frozenset({2})))
        assert [each.token_id for each in search.advance([best_first])] == [0, 1]
        assert [each.ended_by_stop_token for each in search.hypotheses()] == [False, ended]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "is_over"),
    [
        (True, 1.0, True),  # a hypothesis is kept, that is enough
        (False, 1.0, True),  # -2 / 1 is worse than -1 / 1
        ("never", 1.0, False),  # -2 / 4 would be better
        ("never", 0.0, True),  # no length makes -2 better
        ("never", -1.0, True),
    ],
)
def test_when_the_search_ends(early_stopping, length_penalty, is_over):
    params = params_of(
        width=1,
        early_stopping=early_stopping,
        length_penalty=length_penalty,
        stop_token_ids=frozenset({0}),
    )
    search = BeamSearch(params)
    assert (search.advance([row(-1.0, -2.0)]) == []) == is_over
    assert search.hypotheses()[0].token_ids == (0,)


def test_ties_go_to_the_earlier_beam_and_the_callers_order():
    search = BeamSearch(params_of(num_return=2))
    chosen = search.advance([((7, -1.0), (3, -1.0), (5, -1.0))])
    assert [each.token_id for each in chosen] == [7, 3]
    tied = search.advance([row(-1.0, -1.0, -1.0)] * 2)
    assert [(each.parent, each.token_id) for each in tied] == [(0, 0), (0, 1)]
    assert [each.token_ids for each in search.hypotheses()] == [(7, 0), (7, 1)]


def test_a_long_search_shares_histories():
    """As deep as no recursion could go, and freed without one."""
    search = BeamSearch(params_of(width=3, num_return=3, max_tokens=DEEP))
    rows = [row(-0.5, -1.0, -2.0)]
    while live := search.advance(rows):
        rows = [row(-0.5, -1.0, -2.0)] * len(live)
    assert [len(each.token_ids) for each in search.hypotheses()] == [DEEP] * 3
    assert search.hypotheses()[0].token_ids == (0,) * DEEP


def test_banned_tokens_are_never_chosen():
    search = BeamSearch(params_of(width=3, num_return=3))
    assert len(search.advance([row(-1.0, -math.inf, -math.inf)])) == 1
    assert search.advance([row(-math.inf, -math.inf)]) == []
    assert search.hypotheses() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 0}, "width=0 must be >= 1; 1 is the narrowest"),
        ({"num_return": 0}, "num_return=0 must be >= 1; return at least the best"),
        ({"num_return": 3}, "num_return=3 must be <= width=2.*return fewer or search"),
        ({"max_tokens": 0}, "max_tokens=0 must be >= 1; generate at least"),
        ({"length_penalty": math.inf}, "length_penalty=inf must be finite.*0 to 2"),
        ({"length_penalty": math.nan}, "length_penalty=nan must be finite.*0 to 2"),
        ({"length_penalty": -99.0}, "length_penalty=-99.0 must keep max_tokens=4"),
        ({"early_stopping": "always"}, "early_stopping='always' must be True, False or"),
        ({"stop_token_ids": frozenset({-1})}, "stop_token_ids=.*-1.* must be >= 0"),
    ],
)
def test_refused_parameters(changes, words):
    with pytest.raises(ValueError, match=words):
        params_of(**changes)


def test_refused_candidates_leave_the_search_as_it_was():
    search = BeamSearch(params_of(max_tokens=1))
    with pytest.raises(ValueError, match="candidates of 2 beams, but 1 are live"):
        search.advance([row(-1.0), row(-1.0)])
    for bad in ((-2.0, -1.0), (math.nan, -1.0), (-1.0, math.nan)):
        with pytest.raises(ValueError, match="best first and without NaN"):
            search.advance([row(*bad)])
    assert search.advance([row(-1.0, -2.0)]) == []
    assert [each.token_ids for each in search.hypotheses()] == [(0,)]
    with pytest.raises(ValueError, match="the search is over"):
        search.advance([row(-1.0, -2.0)])
