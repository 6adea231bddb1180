"""Adapters served: many in one batch, and no K/V of one is read by another."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paxkv import recall
from paxkv.adapters import load_adapters
from paxkv.allocators import prefixes
from paxkv.building import build_engine
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.models.loading import load_decoder
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams

ASSETS = Path(prefixes.__file__).parents[1] / "assets"
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
PLAIN = None
BACKWARDS = "backwards"
NUM_CACHED = 48  # tokens of a prompt in whole blocks


@pytest.fixture(scope="module")
def loaded():
    decoder = load_decoder(ASSETS / "recall")
    folders = {BACKWARDS: ASSETS / "recall_adapter"}
    return decoder, load_adapters(folders, decoder.config, "float32")


def engine_of(loaded):
    decoder, adapters = loaded
    config = EngineConfig(
        model="recall",
        cache=CacheConfig(block_size=16, num_blocks=128, prefix_caching=True),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        check_invariants=True,
    )
    return build_engine(config, decoder, adapters=adapters)[0]


def serve(engine, loaded, work):
    """Tokens and cached prompt tokens of (prompt, adapter's name) pairs, served at once."""
    outputs, cached = {}, {}
    for prompt, name in work:
        adapter = None if name is None else loaded[1].named(name)
        options = RequestOptions(adapter=adapter)
        outputs[engine.add(prompt.prompt_ids, GREEDY, options=options)] = []
    while engine.has_unfinished:
        for update in engine.step().updates:
            outputs[update.request_id] += update.new_token_ids
            if update.metrics is not None:
                cached[update.request_id] = update.metrics.num_cached_tokens
    return [(tuple(ids), cached[request_id]) for request_id, ids in outputs.items()]


def answer(prompt, name) -> tuple[int, ...]:
    values = np.reshape(prompt.answer_ids[:-1], (-1, recall.VALUE_LEN))
    if name == BACKWARDS:
        values = values[:, ::-1]
    return (*values.ravel().tolist(), recall.STOP_ID)


def prompts_of(count: int, seed: int = 5):
    """Of 50 tokens: all but the last two lie in three whole blocks, the queries too."""
    rng = np.random.default_rng(seed)
    return [recall.make_prompt(rng, 6, 6) for _ in range(count)]


def test_a_mixed_batch_answers_as_each_alone(loaded):
    work = [(p, (PLAIN, BACKWARDS)[i % 2]) for i, p in enumerate(prompts_of(8))]
    mixed = [ids for ids, _ in serve(engine_of(loaded), loaded, work)]
    assert mixed == [serve(engine_of(loaded), loaded, [one])[0][0] for one in work]
    assert sum(ids == answer(*one) for ids, one in zip(mixed, work, strict=True)) >= 7


def test_kv_of_one_adapter_is_read_by_no_other(loaded):
    engine = engine_of(loaded)
    (prompt,) = prompts_of(1)
    for name, num_cached in (
        (PLAIN, 0),
        (BACKWARDS, 0),
        (PLAIN, NUM_CACHED),
        (BACKWARDS, NUM_CACHED),
    ):
        assert serve(engine, loaded, [(prompt, name)]) == [
            (answer(prompt, name), num_cached)
        ]


def test_a_cache_that_ignores_adapters_answers_wrong(loaded, monkeypatch):
    """The twin of the test above: without the adapter in the key, wrong tokens."""
    key = prefixes.isolation_key
    monkeypatch.setattr(
        prefixes,
        "isolation_key",
        lambda model, options: key(model, replace(options, adapter=None)),
    )
    engine = engine_of(loaded)
    wrong = 0
    for prompt in prompts_of(6):
        serve(engine, loaded, [(prompt, PLAIN)])
        ((ids, num_cached),) = serve(engine, loaded, [(prompt, BACKWARDS)])
        assert num_cached == NUM_CACHED
        wrong += ids != answer(prompt, BACKWARDS)
    assert wrong >= 5
