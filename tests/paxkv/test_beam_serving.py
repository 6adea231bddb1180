"""Beam search in the engine, paged, forked, copied on write: equal to transformers."""

import json
from pathlib import Path

import pytest

from paxkv.building import build_engine
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.engine import Engine
from paxkv.models.decoder import Decoder
from paxkv.moves import CopyBlock
from paxkv.sampling_params import SamplingParams
from paxkv.types import Plan
from tests.paxkv.models.hf_fixtures import decoder_of

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/beam/expected.json"
EXPECTED = json.loads(FIXTURE.read_text())
CASES = [
    (prompt, dict(zip(EXPECTED["fields"], case, strict=True)))
    for prompt in EXPECTED["prompts"]
    for case in prompt["cases"]
]
BATCH = 12  # cases served side by side
TOLERANCE = 1e-4  # of scores, relative where penalties make them large


def engine_of(decoder: Decoder, *, num_blocks: int = 200, **settings) -> Engine:
    scheduler = {"max_num_seqs": 32, "max_num_batched_tokens": 64}
    cache = {"block_size": 4, "num_blocks": num_blocks}
    for key, value in settings.items():
        (cache if key in CacheConfig.__dataclass_fields__ else scheduler)[key] = value
    config = EngineConfig(
        model="fixture",
        implementation="xla",
        max_context=64,
        check_invariants=True,
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(**scheduler),
    )
    return build_engine(config, decoder)[0]


def sampling_of(case: dict) -> SamplingParams:
    return SamplingParams(
        n=case["num_return"],
        best_of=case["width"],
        use_beam_search=True,
        max_tokens=EXPECTED["max_tokens"],
        length_penalty=case["length_penalty"],
        early_stopping=case["early_stopping"],
        stop_token_ids=case["stop_token_ids"],
        ignore_eos=True,
    )


def serve(engine: Engine, cases) -> dict[int, list[tuple[list[int], float]]]:
    """(tokens, score) of every request's beams, best first."""
    for index, (prompt, case) in enumerate(cases):
        engine.add(prompt["prompt_ids"], sampling_of(case), request_id=index)
    found: dict[int, list[tuple[list[int], float]]] = {i: [] for i in range(len(cases))}
    while engine.has_unfinished:
        for update in engine.step().updates:
            assert update.finish is not None, "beams are told when all is known"
            assert update.sample_index == len(found[update.request_id])
            beam = list(update.new_token_ids), update.score
            found[update.request_id].append(beam)
    return found


def check(found, cases) -> None:
    for index, (_, case) in enumerate(cases):
        assert [tokens for tokens, _ in found[index]] == case["sequences"], case
        scores = [score for _, score in found[index]]
        assert scores == pytest.approx(case["scores"], rel=TOLERANCE, abs=TOLERANCE)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return decoder_of(EXPECTED["model"])


@pytest.mark.parametrize("first", range(0, len(CASES), 4 * BATCH))
def test_beams_are_those_of_transformers(decoder, first):
    cases = CASES[first : first + BATCH]
    check(serve(engine_of(decoder), cases), cases)


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix_caching": True},
        {"prefix_caching": True, "granularity": "token", "poison": True},
        {"num_blocks": 30, "watermark": 0.0},
        {"preempt_every": 3},
        {"preempt_every": 3, "pressure": "preempt_swap", "host_blocks": 40},
        {"max_num_batched_tokens": 3},
        {"block_size": 1},
        {"block_size": 16},
    ],
    ids=str,
)
def test_beams_do_not_depend_on_how_they_are_served(decoder, settings):
    cases = CASES[5 : 5 + 3 * BATCH : 3]
    check(serve(engine_of(decoder, **settings), cases), cases)


def test_a_divergent_append_copies_one_block_at_most(decoder):
    """Of `width` beams that share a partly filled block, all but one copy it."""
    engine = engine_of(decoder)
    plans: list[Plan] = []
    run = engine.executor.run
    engine.executor.run = lambda plan: plans.append(plan) or run(plan)
    wide = next(case for case in CASES if case[1]["width"] == 4)
    serve(engine, [wide])
    for plan in plans:
        copies = [move for move in plan.moves if isinstance(move, CopyBlock)]
        assert len(copies) <= 3
        assert len({move.dst for move in copies}) == len(copies)
        if (plan.starts % 4 == 0).all():
            assert not copies, "a new block is appended, nothing is copied"
    counted = sum(isinstance(m, CopyBlock) for plan in plans for m in plan.moves)
    assert engine.scheduler.journal.num_copied_blocks == counted > 0
