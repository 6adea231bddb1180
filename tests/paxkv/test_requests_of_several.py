"""Beams, samples and forks where something ends early, and what they leave behind."""

import numpy as np
import pytest

from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.types import FinishReason
from tests.fakes import make_engine
from tests.told import Told, serve

BEAMS = SamplingParams(n=2, best_of=3, use_beam_search=True, max_tokens=6, ignore_eos=True)
PLAIN = SamplingParams(max_tokens=6, ignore_eos=True)


def finishes(told: Told, request_id: int) -> list[FinishReason]:
    return [
        reason
        for (one, _), reason in sorted(told.reasons.items(), key=lambda pair: pair[0])
        if one == request_id
    ]


def test_aborting_a_beam_ends_the_search():
    engine = make_engine(num_blocks=40)
    engine.add(range(1, 9), BEAMS)
    other = engine.add(range(1, 6), PLAIN)
    for _ in range(3):
        engine.step()
    assert engine.abort(0, sample_index=1)
    told = serve(engine)
    assert finishes(told, 0) == [FinishReason.ABORTED] * 2
    assert finishes(told, other) == [FinishReason.LENGTH]


def test_more_candidates_than_are_offered_are_refused():
    engine = make_engine(num_blocks=40, vocab_size=5_000)
    stops = tuple(range(1_000, 1_300))
    wide = SamplingParams(
        n=2, use_beam_search=True, max_tokens=4, stop_token_ids=stops, ignore_eos=True
    )
    engine.add((1, 2, 3), wide)
    told = serve(engine)
    assert finishes(told, 0) == [FinishReason.REJECTED_NEVER_FITS]


def test_a_fork_is_judged_as_a_request_is():
    engine = make_engine(num_blocks=40)
    engine.add(range(1, 6), SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(5):
        engine.step()
    unknown = engine.fork(0, SamplingParams(max_tokens=9, stop_token_ids=(99_999,)))
    full = engine.fork(0, SamplingParams(max_tokens=2, ignore_eos=True))
    told = serve(engine)
    assert finishes(told, unknown) == [FinishReason.REJECTED_BAD_TOKEN]
    assert finishes(told, full) == [FinishReason.LENGTH]


@pytest.mark.parametrize("width", [1, 3])
def test_beams_do_not_fork(width):
    engine = make_engine(num_blocks=40)
    engine.add(range(1, 6), SamplingParams(n=width, use_beam_search=True, max_tokens=8))
    engine.step()
    with pytest.raises(ValueError, match="without beam search"):
        engine.fork(0, PLAIN)


def test_tokens_of_a_tenant_are_those_that_were_computed_for_it():
    """Prompt 8, 6 outputs: once 14, of 4 samples 8 + 24, and beams leave nothing."""
    engine = make_engine(num_blocks=60)
    served = engine.scheduler.policies.served
    four = SamplingParams(n=4, max_tokens=6, ignore_eos=True)
    for tenant, sampling in (("one", PLAIN), ("four", four), ("beams", BEAMS)):
        engine.add(range(1, 9), sampling, options=RequestOptions(tenant=tenant))
    serve(engine)
    assert served.of("one") == 8 + 6
    assert served.of("four") == 8 + 4 * 6
    assert served.of("beams") >= 8
    assert not served._running


def test_what_beams_leave_obeys_retain():
    for retain, is_kept in ((("completed",), True), ((), False)):
        engine = make_engine(num_blocks=60, prefix_caching=True, retain=retain)
        engine.add(range(1, 9), BEAMS)
        serve(engine)
        assert (engine.scheduler.allocator.usage(0).num_cached > 0) is is_kept


def test_salts_leave_no_roots():
    engine = make_engine(num_blocks=60, prefix_caching=True)
    for index in range(50):
        engine.add((1, 2), PLAIN, options=RequestOptions(salt=f"salt {index}"))
        serve(engine)
    engine.reset_prefix_cache()
    assert not engine.scheduler.allocator.prefixes.cache.roots


def test_what_the_host_lost_is_computed_again():
    engine = make_engine(num_blocks=8, pressure="preempt_swap", host_blocks=16)
    lost = np.zeros(16, bool)
    swapper = engine.scheduler.running.swapper
    swapper.host.is_corrupt = lambda group, slot: bool(lost[slot])
    long = SamplingParams(max_tokens=16, ignore_eos=True)
    whole = make_engine(num_blocks=40)
    for one in (engine, whole):
        for start in (1, 30):
            one.add(range(start, start + 8), long)
    expected = serve(whole)
    first: list = []
    for _ in range(2_000):
        if any(engine.scheduler.waiting.swapped_with(r) for r in engine.scheduler.waiting):
            break
        first += engine.step().updates
    else:
        raise AssertionError("nobody was swapped out")
    lost[:] = True
    told = serve(engine)
    for (request_id, _), tokens in expected.tokens.items():
        early = [t for u in first if u.request_id == request_id for t in u.new_token_ids]
        assert (*early, *told.tokens[request_id, 0]) == tokens
    recomputed = [one.num_recomputed_tokens for one in told.metrics.values()]
    assert sum(recomputed) > 0


def test_an_exception_of_a_policy_takes_no_row():
    engine = make_engine(num_blocks=40, scheduling="fcfs")
    engine.add(range(1, 6), PLAIN)
    allocator = engine.scheduler.allocator
    admit, calls = allocator.admit, []

    def fails_once(row, request, free):
        calls.append(row)
        if len(calls) == 1:
            raise RuntimeError("a policy's own fault")
        return admit(row, request, free)

    allocator.admit = fails_once
    with pytest.raises(RuntimeError, match="own fault"):
        engine.step()
    assert finishes(serve(engine), 0) == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    ("family", "policy"),
    [("eviction", "os:getcwd"), ("admission", "os:getcwd"), ("eviction", "lruu")],
)
def test_what_is_no_policy_is_refused_by_the_config(family, policy):
    with pytest.raises(ValueError, match=f"{family}='{policy}' cannot be used"):
        make_engine(**{family: policy})


def test_a_pressure_policy_must_say_what_to_do():
    engine = make_engine(num_blocks=9, preempt_every=2)
    policies = engine.scheduler.policies
    object.__setattr__(policies, "pressure", lambda victim, costs: None)
    engine.add(range(1, 9), PLAIN)
    with pytest.raises(ValueError, match="must return a Relief"):
        serve(engine)


def test_a_request_id_is_an_int64():
    with pytest.raises(ValueError, match="request_id=9223372036854775808 must be in"):
        make_engine().add((1, 2), PLAIN, request_id=2**63)


def test_a_cached_block_that_the_host_lost_leaves_the_tree():
    engine = make_engine(num_blocks=8, prefix_caching=True, host_blocks=16)
    cache = engine.scheduler.allocator.prefixes.cache
    prompt, other = tuple(range(1, 18)), tuple(range(40, 57))
    for one in (prompt, other):
        engine.add(one, PLAIN)
        serve(engine)
    on_host = [node for node in cache.nodes() if node.host_slots[0] >= 0]
    lost = {node.host_slots[0] for node in on_host}
    asked: list[int] = []

    def is_corrupt(group, slot):
        asked.append(slot)
        return slot in lost

    cache.host.is_corrupt = is_corrupt
    assert on_host
    engine.add(prompt, PLAIN)
    assert engine.scheduler.allocator.prefixes.find(engine.scheduler.waiting[0]).path
    assert not asked, "bytes are verified where they are used, not at every look-up"
    told = serve(engine)
    assert asked
    fresh = make_engine(num_blocks=40)
    fresh.add(prompt, PLAIN)
    assert [*told.tokens.values()] == [*serve(fresh).tokens.values()]


def test_a_deduplicated_block_is_poisoned_as_every_freed_one():
    engine = make_engine(num_blocks=30, prefix_caching=True, poison=True)
    journal, freed = engine.scheduler.journal, []
    poison = journal.poison
    journal.poison = lambda group, blocks: freed.append(blocks) or poison(group, blocks)
    for _ in range(2):  # admitted at once, so both compute the same blocks
        engine.add(range(1, 9), PLAIN)
    engine.step()
    pool = engine.scheduler.allocator.pools[0]
    assert sum(count == 2 for count in pool.refcounts) == 2
    unowned = [b for b in range(1, 30) if not pool.refcounts[b]]
    assert len([b for blocks in freed for b in blocks if b in unowned]) >= 2
