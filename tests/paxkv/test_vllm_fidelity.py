"""The preset `vllm_v1` against vLLM's own scheduler and KV cache manager: in each step the
same tokens of the same requests, the same preemptions, ends and free blocks.

PAXKV_VLLM_HOST=PYTHON:SOURCE names an interpreter with torch and what vLLM imports, and the
unpacked source distribution of vllm-tpu 0.32.0; without it these tests are skipped.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from configs.systems import vllm_v1
from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.host_decisions import (
    Arrivals,
    Decision,
    decide,
    decide_by_peer,
    first_difference,
)
from paxkv.host_peer import Peer

PLACE = os.environ.get("PAXKV_VLLM_HOST", "")
SCRIPT = Path(__file__).parents[2] / "scripts" / "peer_vllm_host.py"
VERSION = "0.32.0"
BLOCK_SIZE = 16
NUM_PREFIXES = 9
SEEDS = range(2)

pytestmark = pytest.mark.skipif(
    not PLACE, reason="needs PAXKV_VLLM_HOST=PYTHON:SOURCE of vLLM (see the module)"
)


@pytest.fixture(scope="module")
def peer():
    started = Peer(PLACE, SCRIPT)
    assert started.version.startswith(VERSION), f"the preset is of {VERSION}"
    yield started
    started.close()


def both(
    peer: Peer,
    stream: Arrivals,
    num_blocks: int,
    *,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    watermark: float = 0.0,
    prefix_caching: bool = True,
) -> tuple[list[Decision], list[Decision]]:
    """Our decisions and theirs, under the same limits."""
    preset = vllm_v1.get_config()
    limits = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "watermark": watermark,
    }
    cache = CacheConfig(**preset.cache.to_dict() | {"prefix_caching": prefix_caching})
    config = SchedulerConfig(**preset.scheduler.to_dict() | limits)
    ours = decide(stream, cache, config, num_blocks)
    caching = {"prefix_caching": prefix_caching, "block_size": BLOCK_SIZE}
    return ours, decide_by_peer(peer, stream, num_blocks, **limits, **caching)


def tokens(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(rng.integers(1, 50_000, count).tolist())


def mixed(seed: int, num_requests: int = 24) -> Arrivals:
    """Half of the prompts begin like one that came `NUM_PREFIXES` before, so that nobody
    finds K/V in the step that computes it."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([20, 48, 100], NUM_PREFIXES)
    prefixes = [tokens(rng, int(count)) for count in lengths]
    prompts: list[tuple[int, ...]] = []
    outputs: list[tuple[int, ...]] = []
    arriving: list[tuple[int, ...]] = []
    while len(prompts) < num_requests:
        first = len(prompts)
        for _ in range(int(rng.poisson(0.8))):
            prefix = prefixes[len(prompts) % NUM_PREFIXES] if rng.random() < 0.7 else ()
            prompts.append(prefix + tokens(rng, int(rng.integers(1, 90))))
            outputs.append(tokens(rng, int(rng.integers(1, 50))))
        arriving.append(tuple(range(first, len(prompts))))
    return Arrivals(
        prompts=tuple(prompts),
        outputs=tuple(outputs),
        arriving=tuple(arriving),
        max_context=256,
    )


LIMITS = {
    "plenty": {"num_blocks": 400, "max_num_seqs": 64},
    "pressure": {"num_blocks": 60},
    "small_chunks": {"num_blocks": 30, "max_num_batched_tokens": 32},
    "watermark": {"num_blocks": 40, "max_num_batched_tokens": 200, "watermark": 0.1},
    "few_rows": {"num_blocks": 60, "max_num_seqs": 3},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_every_decision_is_the_same(peer, limits):
    num_preemptions = 0
    for seed in SEEDS:
        stream, computed = mixed(seed), []
        for prefix_caching in (False, True):
            ours, theirs = both(peer, stream, **limits, prefix_caching=prefix_caching)
            assert first_difference(ours, theirs) is None, (seed, prefix_caching)
            num_preemptions += sum(len(decision.preempted) for decision in ours)
            computed.append(sum(sum(one.num_tokens.values()) for one in ours))
        assert computed[1] < computed[0], "nothing was found in the cache"
    assert (num_preemptions > 0) == (
        limits["num_blocks"] < 100 and "max_num_seqs" not in limits
    )


def pair(second: tuple[int, ...], *, step: int, first: tuple[int, ...]) -> Arrivals:
    """Two requests of which the second comes before the given step."""
    return Arrivals(
        prompts=(first, second),
        outputs=((1, 2, 3, 4, 5, 6), (7, 8)),
        arriving=((0,), *[()] * (step - 1), (1,)) if step else ((0, 1),),
        max_context=256,
    )


def test_known_difference_a_whole_prompt_that_is_cached(peer):
    """We compute its last token, vLLM its last block, for which it takes a block."""
    prompt = tuple(range(1, 33))
    ours, theirs = both(peer, pair(prompt, step=1, first=prompt), 20)
    assert (ours[1].num_tokens[1], theirs[1].num_tokens[1]) == (1, 16)
    assert ours[1].num_free - theirs[1].num_free == 1
    longer = pair((*prompt, 33), step=1, first=prompt)
    assert first_difference(*both(peer, longer, 20)) is None


def test_known_difference_k_v_of_the_same_step(peer):
    """vLLM finds blocks that this very step fills, we find them in the next one."""
    first, second = tuple(range(1, 41)), (*range(1, 33), 99, 98)
    ours, theirs = both(peer, pair(second, step=0, first=first), 20)
    assert ours[0].num_tokens == {0: 40, 1: 24}  # the rest of the budget
    assert theirs[0].num_tokens == {0: 40, 1: 2}
    assert first_difference(*both(peer, pair(second, step=1, first=first), 20)) is None


def test_known_difference_the_twin_of_an_evicted_block(peer):
    """Two requests generate the same two blocks side by side. The first ends and its blocks
    are evicted; vLLM still finds the second one's, which have no key here."""
    prompt, generated = tuple(range(1, 16)), tuple(range(100, 124))
    again = (*prompt, *generated[:17], 98, 99)
    stream = Arrivals(
        prompts=(prompt, prompt, tuple(range(200, 263)), again),
        outputs=(generated[:18], generated, (7,), (8,)),
        arriving=((0, 1), *[()] * 18, (2,), *[()] * 5, (3,)),
        max_context=128,
    )
    ours, theirs = both(peer, stream, 8)
    assert ours[:25] == theirs[:25]
    assert [decision.finished for decision in ours if decision.finished] == [
        (0,),
        (2,),
        (1,),
        (3,),
    ]
    assert (ours[25].num_tokens, theirs[25].num_tokens) == ({3: 34}, {3: 2})
