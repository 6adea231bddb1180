"""A search has a region for each of its beams from admission on, and none too many."""

import pytest

from paxkv.allocators.beam_regions import BeamRegions
from paxkv.beam import BeamParams
from paxkv.events import EventKind
from paxkv.types import FinishReason
from tests.fakes import fake_beams, make_engine, make_request, make_scheduler

KINDS = ("contiguous_max", "contiguous_pow2", "contiguous_oracle", "contiguous_first_fit")
WIDTH = 3


def test_a_dropped_beam_leaves_its_region_to_the_next():
    beams = BeamRegions()
    beams.admit(7, row=0, spares=[10, 20])
    assert beams.spares(0) == [10, 20]
    assert beams.fork(0, 1) == 20
    assert beams.mates(1) == (0, 1)
    assert (beams.spares(0), beams.spares(1)) == ([10], [])
    assert beams.release(0, 5) == []
    assert beams.spares(1) == [10, 5]  # the first of those left holds them
    assert beams.fork(1, 2) == 5
    assert beams.release(1, 20) == []
    assert sorted(beams.release(2, 5)) == [5, 10, 20]
    assert beams.mates(2) == () and beams.spares(2) == []


def test_a_row_without_a_search_is_its_own():
    beams = BeamRegions()
    assert beams.fork(3, 4) is None
    assert beams.release(3, 8) == [8]


def searching(prompt, max_tokens, **settings):
    """An engine with one beam search in it, and the search's parameters."""
    engine = make_engine(max_num_seqs=4, **settings)
    sampling = make_request(1, max_tokens, n=WIDTH, use_beam_search=True).sampling
    engine.add(prompt, sampling, request_id=0)
    params = BeamParams(
        width=WIDTH,
        num_return=WIDTH,
        max_tokens=max_tokens,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        stop_token_ids=frozenset(),
    )
    return engine, params


@pytest.mark.parametrize("allocator", KINDS)
def test_a_search_finds_the_same_and_copies_the_blocks_of_its_forks(allocator):
    """The invariants hold after each step, and each position has one class."""
    prompt, copies = tuple(range(1, 11)), []
    engine, params = searching(
        prompt,
        9,
        allocator=allocator,
        num_blocks=65,
        listener=lambda event: (
            copies.append(event) if event.kind is EventKind.COPY else None
        ),
    )
    found, peak = {}, 0
    while engine.has_unfinished:
        outcome = engine.step()
        if outcome.metrics is not None:
            (partition,) = outcome.metrics.partitions
            assert partition.total == 64 * 4
            peak = max(peak, partition.total - partition.free)
        for update in outcome.updates:
            found[update.sample_index] = update.new_token_ids
    assert [found[index] for index in sorted(found)] == [
        hypothesis.token_ids for hypothesis in fake_beams(prompt, params)
    ]
    blocks = {"contiguous_max": 16, "contiguous_first_fit": 5}.get(allocator, 8)
    assert peak == WIDTH * blocks * 4
    assert len(copies) >= (WIDTH - 1) * 3  # of a prompt of 3 blocks, at the first fork
    assert engine.scheduler.allocator.usage(0).num_free == 64


def test_all_regions_or_none_at_admission():
    """Room for two of three: the search waits, with nothing taken."""
    engine, _ = searching((1, 2, 3), 5, allocator="contiguous_first_fit", num_blocks=7)
    engine.add((4, 5, 6), make_request(1, 5).sampling)  # 2 blocks each
    engine.step()
    allocator = engine.scheduler.allocator
    assert allocator.usage(0).num_free == 0  # the search came first, and has all
    engine.abort(0)
    assert allocator.usage(0).num_free == 6
    engine.step()
    assert allocator.usage(0).num_free == 4
    sampling = make_request(1, 5, n=WIDTH, use_beam_search=True).sampling
    engine.add((1, 2, 3), sampling)
    engine.step()
    assert allocator.usage(0).num_free == 4
    while engine.has_unfinished:
        engine.step()
    assert allocator.usage(0).num_free == 6


@pytest.mark.parametrize(
    ("allocator", "message"),
    [
        ("contiguous_first_fit", "3 beams reserve a region of 2 blocks of 4 each"),
        ("contiguous_grow", "which contiguous_grow moves; use contiguous_first_fit"),
        ("contiguous_compact", "which contiguous_compact moves"),
    ],
)
def test_beams_that_can_never_have_their_regions_are_refused(allocator, message):
    scheduler = make_scheduler(allocator=allocator, num_blocks=6)
    (update, *_) = scheduler.add(make_request(3, 5, n=WIDTH, use_beam_search=True))
    assert update.finish.reason is FinishReason.REJECTED_NEVER_FITS
    assert message in update.finish.message
