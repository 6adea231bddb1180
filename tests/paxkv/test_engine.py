"""Whole runs over the fake executor, whose tokens depend on all that it reads back."""

import inspect
import itertools
import math

import pytest

from paxkv.allocators import ALLOCATORS
from paxkv.engine import Engine
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import FakeClock, fake_completion, make_engine

LENGTHS = [(1, 9), (15, 8), (16, 8), (17, 5), (33, 12), (40, 6), (5, 30), (2, 1)]
PROMPTS = [
    tuple((31 * index + 7 * i) % 250 + 1 for i in range(length))
    for index, (length, _) in enumerate(LENGTHS)
]
EXPECTED = {
    index: fake_completion(PROMPTS[index], max_tokens)
    for index, (_, max_tokens) in enumerate(LENGTHS)
}


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True, **settings})


def serve(engine, aborts=()):
    """Tokens of each request; `aborts` has the request to cancel after each step."""
    for prompt, (_, max_tokens) in zip(PROMPTS, LENGTHS, strict=True):
        engine.add(prompt, greedy(max_tokens))
    tokens = {index: () for index in range(len(LENGTHS))}
    finishes = {}
    aborts = iter(aborts)
    while engine.has_unfinished:
        for update in engine.step().updates:
            tokens[update.request_id] += update.new_token_ids
            if update.finish is not None:
                assert update.request_id not in finishes
                finishes[update.request_id] = update.finish.reason
        request_id = next(aborts, None)
        if request_id is not None:
            engine.abort(request_id)
    assert set(finishes) == set(tokens)
    allocator = engine.scheduler.allocator
    assert allocator.usage(0).num_free == allocator.usage(0).num_blocks - 1
    return tokens, finishes


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("preempt_every", [0, 2])
def test_tokens_do_not_depend_on_how_they_are_served(
    allocator, block_size, chunk, preempt_every
):
    engine = make_engine(
        allocator=allocator,
        block_size=block_size,
        num_blocks=128 // block_size + 1,
        max_num_batched_tokens=chunk,
        preempt_every=preempt_every,
        shuffle_seed=block_size,
    )
    tokens, finishes = serve(engine)
    assert tokens == EXPECTED
    assert set(finishes.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("victim", VICTIM_POLICIES)
@pytest.mark.parametrize("max_preemptions", [0, 1, 8])
def test_every_victim_policy_makes_progress_in_the_smallest_pool(victim, max_preemptions):
    engine = make_engine(
        num_blocks=13, victim=victim, max_preemptions=max_preemptions, watermark=0.0
    )
    assert serve(engine)[0] == EXPECTED


def test_cancelling_one_at_any_step_leaves_the_others_alone():
    for step, cancelled in itertools.product(range(12), (0, 4, 6)):
        engine = make_engine(num_blocks=20, max_num_batched_tokens=24, preempt_every=3)
        tokens, finishes = serve(engine, [None] * step + [cancelled])
        for index in EXPECTED:
            if finishes[index] is FinishReason.ABORTED:
                assert index == cancelled
                assert tokens[index] == EXPECTED[index][: len(tokens[index])]
            else:
                assert tokens[index] == EXPECTED[index]


def test_bad_requests_end_with_a_reason_and_the_others_go_on():
    engine = make_engine(num_blocks=9)  # 32 positions
    empty = engine.add([], greedy(3))
    good = engine.add([1, 2, 3], greedy(2))
    unknown = engine.add([1, 9999], greedy(3))
    too_long = engine.add([1] * 64, greedy(3))
    too_big = engine.add([1] * 40, greedy(3))
    reasons = {}
    while engine.has_unfinished:
        for update in engine.step().updates:
            if update.finish is not None:
                reasons[update.request_id] = update.finish.reason
    assert reasons == {
        empty: FinishReason.REJECTED_EMPTY,
        good: FinishReason.LENGTH,
        unknown: FinishReason.REJECTED_BAD_TOKEN,
        too_long: FinishReason.REJECTED_TOO_LONG,
        too_big: FinishReason.REJECTED_NEVER_FITS,
    }


def test_news_between_steps_is_told_by_the_next_even_if_nothing_runs():
    engine = make_engine()
    engine.add([], greedy(3))
    waiting = engine.add([1], greedy(3))
    assert engine.abort(waiting)
    assert engine.has_unfinished
    outcome = engine.step()
    assert outcome.metrics is None
    assert [update.finish.reason for update in outcome.updates] == [
        FinishReason.REJECTED_EMPTY,
        FinishReason.ABORTED,
    ]
    assert not engine.has_unfinished
    assert engine.executor.num_runs == 0
    assert engine.step().updates == ()


def test_abort_says_whether_there_was_something_to_end():
    engine = make_engine()
    request_id = engine.add([1], greedy(3))
    assert engine.abort(request_id, FinishReason.STOP_STRING)
    assert not engine.abort(request_id)
    (update,) = engine.step().updates
    assert update.finish.reason is FinishReason.STOP_STRING
    with pytest.raises(KeyError, match="no request has request_id=7"):
        engine.abort(7)


def test_ids_are_numbered_past_those_that_were_given():
    engine = make_engine()
    assert engine.add([1], greedy(1)) == 0
    assert engine.add([1], greedy(1), request_id=41) == 41
    assert engine.add([1], greedy(1)) == 42
    with pytest.raises(ValueError, match="request_id=41 is in use"):
        engine.add([1], greedy(1), request_id=41)


def test_token_ids_must_be_integers():
    with pytest.raises(TypeError):
        make_engine().add([1.5], greedy(1))


def test_times_are_of_the_injected_clock():
    clock = FakeClock(100.0)
    engine = make_engine(clock)
    engine.add([1, 2, 3], greedy(2), arrival_s=99.5)
    first, second = engine.step(), engine.step()
    assert (first.metrics.now_s, second.metrics.now_s) == (100.0, 101.0)
    assert (first.metrics.duration_s, first.metrics.host_s) == (1.0, 0.0)
    (update,) = second.updates
    metrics = update.metrics
    assert metrics.arrival_s == 99.5
    assert metrics.first_scheduled_s == 100.0
    assert metrics.token_times_s == (101.0, 102.0)
    assert metrics.finish_s == 102.0


def test_host_time_is_what_the_executor_did_not_take():
    ticks = itertools.count(0.0, 0.5)
    engine = make_engine()
    engine.clock = lambda: next(ticks)
    engine.executor.duration_s = 0.25
    engine.add([1], greedy(1))
    assert engine.step().metrics.host_s == pytest.approx(1.0 - 0.25)


def test_a_step_that_fails_can_be_planned_again():
    """The executor's exception reaches the caller; no block is lost."""
    engine = make_engine()
    engine.add(PROMPTS[1], greedy(8))
    run = engine.executor.run

    def failing(plan):
        raise RuntimeError("the device went away")

    engine.executor.run = failing
    with pytest.raises(RuntimeError):
        engine.step()
    engine.executor.run = run
    tokens = ()
    while engine.has_unfinished:
        for update in engine.step().updates:
            tokens += update.new_token_ids
    assert tokens == EXPECTED[1]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"sampling": {"max_tokens": 3}}, TypeError, "sampling=.* is a dict; give a Sampl"),
        ({"sampling": None}, TypeError, "sampling=None is a NoneType; give"),
        ({"request_id": "abc"}, TypeError, "request_id='abc' is no integer; give"),
        ({"request_id": True}, TypeError, "request_id=True is a bool.*; give"),
        ({"request_id": 1.0}, TypeError, "request_id=1.0 is no integer; give"),
        ({"request_id": -1}, ValueError, "request_id=-1 must be in 0..9.*; give"),
        ({"arrival_s": math.nan}, ValueError, "arrival_s=nan must be finite.*; give"),
        ({"arrival_s": math.inf}, ValueError, "arrival_s=inf must be finite.*; give"),
        ({"arrival_s": "now"}, TypeError, "arrival_s='now' is a str.*; give"),
        ({"prompt_ids": [1, None]}, TypeError, "NoneType"),
    ],
)
def test_a_wrong_argument_is_named_and_queues_nothing(wrong, error, message):
    engine = make_engine()
    add = inspect.unwrap(Engine.add)  # annotations are enforced in tests only
    with pytest.raises(error, match=message):
        add(engine, **{"prompt_ids": [1, 2], "sampling": greedy(2), **wrong})
    assert not engine.has_unfinished
    assert engine.scheduler.roster.num_added == 0
    assert engine.add([1, 2], greedy(2)) == 0


def test_a_request_that_cannot_be_judged_leaves_no_trace(monkeypatch):
    engine = make_engine()
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler.allocator, "check", _fail)
        with pytest.raises(RuntimeError):
            engine.add([1, 2], greedy(2))
    assert not engine.has_unfinished and not engine.scheduler.waiting
    assert engine.add([1, 2], greedy(2)) == 0


def _fail(request):
    raise RuntimeError("no verdict")


# Sharing.

COMMON = tuple((13 * i) % 250 + 1 for i in range(21))
SHARING = {
    "blocks": {},
    "tokens": {"granularity": "token"},
    "duplicates": {"deduplicate": False},
    "misses": {"force_miss": True},
    "poison": {"poison": True, "granularity": "token"},
    "holds": {"hold_shared_prefixes": True},
    "nothing stays": {"retain": ()},
    "host": {"host_blocks": 16, "granularity": "token"},
    "write_through": {"host_blocks": 6, "host_write": "write_through"},
    "selective": {"host_blocks": 6, "host_write": "write_through_selective"},
    "swap": {"host_blocks": 32, "pressure": "preempt_swap"},
    "window": {"windows": (None, 7)},
}


def serve_twice(engine):
    """Two rounds of prompts that begin alike; checks tokens, counts those found."""
    num_found = 0
    for round_ in range(2):
        expected = {}
        for index, (_, max_tokens) in enumerate(LENGTHS):
            prompt = COMMON[: 3 * index] + PROMPTS[index][:20]
            request_id = engine.add(prompt, greedy(max_tokens))
            expected[request_id] = fake_completion(prompt, max_tokens)
        tokens = dict.fromkeys(expected, ())
        while engine.has_unfinished:
            for update in engine.step().updates:
                tokens[update.request_id] += update.new_token_ids
                if update.metrics is not None and round_:
                    num_found += update.metrics.num_cached_tokens
        assert tokens == expected
    return num_found


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("preempt_every", [0, 3])
def test_tokens_do_not_depend_on_what_is_shared(name, chunk, preempt_every):
    engine = make_engine(
        prefix_caching=True,
        num_blocks=33,
        max_num_batched_tokens=chunk,
        preempt_every=preempt_every,
        shuffle_seed=1,
        **SHARING[name],
    )
    num_found = serve_twice(engine)
    assert (num_found > 0) == (name != "misses")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_fork_has_the_outputs_of_its_parent_and_goes_on_alone(allocator):
    engine = make_engine(allocator=allocator, num_blocks=65)
    parent = engine.add(PROMPTS[1], greedy(8))
    for _ in range(3):
        engine.step()
    child = engine.fork(parent)
    longer = engine.fork(parent, greedy(12), child_id=41)
    assert (child, longer) == (1, 41)
    tokens = {child: (), longer: ()}
    while engine.has_unfinished:
        for update in engine.step().updates:
            if update.request_id in tokens:
                tokens[update.request_id] += update.new_token_ids
    assert tokens == {child: EXPECTED[1], longer: fake_completion(PROMPTS[1], 12)}
    assert engine.add([1], greedy(1)) == 42


def test_a_step_with_copies_that_fails_can_be_planned_again():
    engine = make_engine()
    parent = engine.add(PROMPTS[1], greedy(8))
    engine.step()
    child = engine.fork(parent)
    run = engine.executor.run

    def failing(plan):
        assert plan.moves
        raise RuntimeError("the device went away")

    engine.executor.run = failing
    with pytest.raises(RuntimeError):
        engine.step()
    engine.executor.run = run
    tokens = {parent: EXPECTED[1][:1], child: ()}
    while engine.has_unfinished:
        for update in engine.step().updates:
            tokens[update.request_id] += update.new_token_ids
    assert tokens == {parent: EXPECTED[1], child: EXPECTED[1]}
