"""Forks, samples and beams: what they share, what is copied, counted to the block."""

from collections import Counter

import pytest

from paxkv.beam import BeamParams
from paxkv.events import EventKind
from paxkv.moves import CopyBlock
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import fake_beams, fake_completion, make_engine
from tests.told import serve

PROMPT = (11, 12, 13, 14, 15, 16)  # a block of 4, and half of one


def greedy(max_tokens, **settings):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings)


def num_used(engine):
    usage = engine.scheduler.allocator.usage(0)
    return usage.num_blocks - 1 - usage.num_available


def moves_of_step(engine):
    """The copies of the next step, which is carried out."""
    plan = engine.scheduler.plan(0.0)
    engine.scheduler.commit(plan, engine.executor.run(plan), 0.0)
    return [move for move in plan.moves if isinstance(move, CopyBlock)]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_forks", [1, 2, 3])
def test_all_but_the_last_of_those_that_share_a_tail_copy_it_once(
    num_forks, prefix_caching
):
    engine = make_engine(prefix_caching=prefix_caching)
    parent = engine.add(PROMPT, greedy(6))
    engine.step()
    children = [engine.fork(parent) for _ in range(num_forks)]
    assert num_used(engine) == 2  # nothing is copied before somebody writes
    copies = moves_of_step(engine)
    assert len(copies) == num_forks
    assert len({move.src for move in copies}) == 1
    assert len({move.dst for move in copies}) == num_forks
    assert num_used(engine) == 1 + (1 + num_forks)
    told = serve(engine)
    assert engine.scheduler.journal.num_copied_blocks == num_forks  # and never again
    for child in children:
        assert told.tokens[child, 0][-4:] == fake_completion(PROMPT, 6)[-4:]


def test_appending_a_new_block_behind_shared_ones_copies_nothing():
    engine = make_engine()
    parent = engine.add((*PROMPT, 17, 18), greedy(6))
    engine.step()  # 8 tokens in two full blocks
    engine.fork(parent)
    assert moves_of_step(engine) == []
    assert num_used(engine) == 2 + 2
    pool = engine.scheduler.allocator.pools[0]
    assert Counter(pool.refcounts)[2] == 2
    serve(engine)
    assert engine.scheduler.journal.num_copied_blocks == 0


def test_forks_of_forks_share_what_all_have_in_common():
    engine = make_engine(num_blocks=33)
    grandparent = engine.add(PROMPT, greedy(12))
    for _ in range(3):
        engine.step()
    parent = engine.fork(grandparent)
    for _ in range(3):
        engine.step()
    child = engine.fork(parent)
    assert max(engine.scheduler.allocator.pools[0].refcounts) == 3
    told = serve(engine)
    whole = fake_completion(PROMPT, 12)
    assert told.tokens[child, 0] == whole
    assert told.tokens[parent, 0] == whole[-len(told.tokens[parent, 0]) :]
    assert num_used(engine) == 0


def test_what_cannot_fork_says_why():
    engine = make_engine()
    ended = engine.add(PROMPT, greedy(1))
    serve(engine)
    with pytest.raises(KeyError, match="0 has ended"):
        engine.fork(ended)
    with pytest.raises(KeyError, match="7"):
        engine.fork(7)
    several = engine.add(PROMPT, greedy(2, n=2))
    with pytest.raises(ValueError, match="of 2 sequences cannot fork"):
        engine.fork(several)
    assert set(serve(engine).reasons.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize(
    ("num_prompt", "num_copied", "num_blocks"),
    [(10, 3, 2 + 4), (8, 0, 2 + 4), (3, 3, 4 + 1)],
)
def test_four_samples_share_the_prompt(num_prompt, num_copied, num_blocks):
    engine = make_engine()
    prompt = tuple(range(1, num_prompt + 1))
    engine.add(prompt, greedy(4, n=4))
    for _ in range(3):
        engine.step()
    assert num_used(engine) == num_blocks  # of the first, one token more
    told = serve(engine)
    assert engine.scheduler.journal.num_copied_blocks == num_copied
    for index in range(4):
        rest = told.tokens[0, index]
        assert rest == fake_completion(prompt, 4, index)[-len(rest) :]


def test_best_of_tells_the_best_and_frees_the_rest():
    engine = make_engine()
    engine.add(PROMPT, greedy(5, n=1, best_of=3))
    told = serve(engine)
    (tokens,) = told.tokens.values()
    assert tokens in [fake_completion(PROMPT, 5, index) for index in range(3)]
    assert num_used(engine) == 0


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [2, 3, 5])
def test_beams_copy_at_most_one_block_per_fork(width, block_size):
    events = []
    engine = make_engine(
        num_blocks=1 + 256 // block_size, block_size=block_size, listener=events.append
    )
    engine.add(PROMPT, greedy(9, n=width, use_beam_search=True))
    told = serve(engine)
    kinds = Counter(event.kind for event in events)
    assert kinds[EventKind.FORK] > 0
    assert kinds[EventKind.COPY] <= kinds[EventKind.FORK]
    assert kinds[EventKind.COPY] == sum(step.num_copied_blocks for step in told.steps)
    assert (kinds[EventKind.COPY] == 0) == (block_size == 1)
    params = BeamParams(
        width=width,
        num_return=width,
        max_tokens=9,
        length_penalty=1.0,
        early_stopping=False,
        stop_token_ids=frozenset(),
    )
    found = [told.tokens[0, index] for index in range(width)]
    assert found == [one.token_ids for one in fake_beams(PROMPT, params)]


@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize(
    "several", [{"n": 3}, {"n": 1, "best_of": 3}, {"n": 3, "use_beam_search": True}]
)
def test_aborting_a_group_frees_all_its_sequences(several, num_steps):
    """vllm#14326: the log said aborted, the sequences kept running."""
    engine = make_engine()
    request_id = engine.add(PROMPT, greedy(9, **several))
    for _ in range(num_steps):
        engine.step()
    assert engine.abort(request_id)
    assert num_used(engine) == 0
    assert not engine.scheduler.has_unfinished
    told = serve(engine)
    assert set(told.reasons.values()) == {FinishReason.ABORTED}
