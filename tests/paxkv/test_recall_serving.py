"""The shipped model through the paged cache: recall is right, and reads what it must.

The model carries a value from its pair to the query when it reads the query, and from
there to the output. So a block of pairs is zeroed once the pairs are computed and the
queries are not, and a block of queries once the whole prompt is.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from paxkv.building import build_engine
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.models.loading import load_decoder
from paxkv.recall import KEY_LEN, PAIR_LEN, make_prompt, score
from paxkv.sampling_params import SamplingParams

MODEL = "paxkv/assets/recall"
NUM_PAIRS = 24
BLOCK_SIZE = 24  # tokens: exactly four pairs, or twelve keys less the `?` before them
PAIRS_LEN = PAIR_LEN * NUM_PAIRS
NUM_PROMPTS = 6


@pytest.fixture(scope="module")
def decoder():
    return load_decoder(MODEL)


@jax.jit
def zeroed(blocks, block):
    return replace(blocks, kv=blocks.kv.at[:, block].set(0))


def recall(decoder, zero_block: int | None, after_tokens: int = 0) -> float:
    """Share of keys answered right; table entry `zero_block` is zeroed as soon as
    `after_tokens` of the prompt are computed."""
    config = EngineConfig(
        model=MODEL,
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=20),
        scheduler=SchedulerConfig(
            max_num_seqs=1,
            max_num_batched_tokens=PAIRS_LEN,  # the first chunk is all pairs
        ),
        check_invariants=True,
    )
    engine, executor = build_engine(config, decoder)
    tables = engine.scheduler.tables
    rng = np.random.default_rng(3)
    right = 0
    for _ in range(NUM_PROMPTS):
        prompt = make_prompt(rng, NUM_PAIRS, NUM_PAIRS)
        engine.add(
            prompt.prompt_ids,
            SamplingParams(max_tokens=len(prompt.answer_ids), temperature=0.0),
        )
        outputs, done = [], zero_block is None
        while engine.has_unfinished:
            for update in engine.step().updates:
                outputs += update.new_token_ids
            if not done and tables.num_computed[0] >= after_tokens:
                block = tables.block_tables[0][0, zero_block]
                executor.cache = (zeroed(executor.cache[0], block),)
                done = True
        right += score(prompt, outputs)[0]
    return right / (NUM_PROMPTS * NUM_PAIRS)


def test_recall_is_right_through_the_paged_cache(decoder):
    assert recall(decoder, zero_block=None) >= 0.99


@pytest.mark.parametrize("block", [0, 2, 5])
def test_a_zeroed_block_of_pairs_loses_at_least_its_share(decoder, block):
    share = BLOCK_SIZE / PAIR_LEN / NUM_PAIRS
    lost = 1 - recall(decoder, block, after_tokens=PAIRS_LEN)
    assert lost >= share


def test_a_zeroed_block_of_queries_loses_at_least_its_share(decoder):
    share = (BLOCK_SIZE - 1) // KEY_LEN / NUM_PAIRS
    prompt_len = len(make_prompt(np.random.default_rng(0), NUM_PAIRS, NUM_PAIRS).prompt_ids)
    block = PAIRS_LEN // BLOCK_SIZE  # begins with the `?`
    lost = 1 - recall(decoder, block, after_tokens=prompt_len)
    assert lost >= share
