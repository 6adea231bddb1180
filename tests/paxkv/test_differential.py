"""Same tokens always: every way to serve a workload against dense attention.

Each axis alone against the base case, then seeded random combinations (200, or
`--random-cases`), or the full product with `--full`.
"""

import functools
import itertools
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, get_args

import jax
import numpy as np
import pytest

from paxkv.allocators import ALLOCATORS
from paxkv.config import Batching, Granularity, HostWrite
from paxkv.policies.admission import ADMISSION_POLICIES
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.policies.pressure import PRESSURE_POLICIES
from paxkv.policies.scheduling import SCHEDULING_POLICIES
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import SamplingParams
from tests.harness import (
    BASE,
    POOL_TOKENS,
    SMALLEST_GAP,
    Case,
    Tokens,
    Work,
    count_steps,
    serve,
    smallest_gap,
)
from tests.tiny_model import tiny_decoder

BLOCK_SIZES = (1, 2, 3, 8, 16, 64, 256)
CHUNKS = (1, 2, 3, 7, 16, 33, 64, 128)  # the longest prompt has 90 tokens
PREEMPT_EVERY = (0, 1, 2, 3, 7)
# `cpu` needs the extra of that name, which scripts/test.sh installs
IMPLEMENTATIONS = ("xla", "cpu") if find_spec("numba") else ("xla",)
GRAIN, WRITES = get_args(Granularity), get_args(HostWrite)
BATCHINGS = get_args(Batching)
ENGINE_SEED = 0
CASES_PER_CLEARING = 50


PRESSURES = tuple(name for name in PRESSURE_POLICIES if name != "reject")
MOVING = ("contiguous_compact", "contiguous_grow")
UNCUT = 128  # a budget of the whole context, as prompts that are not cut need it
CACHED = replace(BASE, prefix_caching=True, max_num_seqs=3)
TIGHT = 112  # usable positions of a pool that cannot hold all requests

# (prompt, output) tokens of each request, around block borders; how many tokens of its
# prompt are the common text's; how many samples it draws
Lengths = tuple[tuple[int, int, int, int], ...]
LENGTHS: Lengths = (
    (1, 9, 0, 1),
    (15, 8, 15, 1),
    (16, 8, 16, 1),
    (17, 5, 16, 3),
    (33, 12, 32, 1),
    (64, 6, 64, 1),
    (90, 10, 40, 2),
    (5, 40, 5, 1),
    (64, 9, 64, 1),  # the same prompt again
    (50, 7, 37, 1),
)
# of the random combinations: fewer steps each, so that there can be many
SHORT_LENGTHS: Lengths = (
    (1, 6, 0, 1),
    (16, 5, 16, 2),
    (33, 4, 20, 1),
    (70, 5, 60, 1),
    (5, 9, 0, 1),
    (33, 5, 33, 1),
)


@functools.cache
def workload(lengths: Lengths = LENGTHS) -> tuple[Work, ...]:
    """Greedy and seeded requests side by side, many of which share a prefix."""
    rng = np.random.default_rng(5)
    common = rng.integers(0, 60, 90).tolist()
    work = []
    for index, (prompt_len, max_tokens, num_common, n) in enumerate(lengths):
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.8 if n > 1 or index % 2 else 0.0,
            seed=None if index in (3, 7) else 1000 + index,
            ignore_eos=True,
            n=n,
        )
        own = rng.integers(0, 60, prompt_len - num_common).tolist()
        prompt = tuple(common[:num_common] + own)
        work.append(Work(prompt_ids=prompt, sampling=sampling))
    return tuple(work)


@functools.cache
def base_tokens(lengths: Lengths = LENGTHS) -> Tokens:
    return serve(BASE, workload(lengths))


@pytest.mark.parametrize("lengths", [LENGTHS, SHORT_LENGTHS], ids=["long", "short"])
def test_base_equals_dense_attention_and_gaps_are_wide(lengths):
    """One dense pass over the finished sequence judges every token of it."""
    work = workload(lengths)
    samples = {(i, s) for i, one in enumerate(work) for s in range(one.sampling.n)}
    assert set(base_tokens(lengths)) == samples
    for (index, sample_index), tokens in base_tokens(lengths).items():
        gap = smallest_gap(
            tiny_decoder(),
            work[index],
            tokens,
            request_id=index,
            seed=ENGINE_SEED,
            sample_index=sample_index,
        )
        print(f"request {index}/{sample_index}: smallest top-2 gap {gap:.4f}")
        assert gap > SMALLEST_GAP


def alone() -> list[Case]:
    """Every value of every axis, the others as in the base case."""
    cases = [replace(BASE, block_size=b) for b in BLOCK_SIZES]
    cases += [replace(BASE, allocator=a) for a in ALLOCATORS]
    cases += [replace(BASE, chunk=c) for c in CHUNKS]
    cases += [replace(BASE, allocator=a, pool_tokens=TIGHT) for a in MOVING]
    cases += [replace(BASE, batching="request", allocator=a) for a in ALLOCATORS[:2]]
    cases += [replace(BASE, mix_prefill=False, chunk=c, pool_tokens=TIGHT) for c in (7, 64)]
    cases += [
        replace(one, chunked_prefill=False, chunk=UNCUT)
        for one in (BASE, CACHED, replace(BASE, mix_prefill=False, pool_tokens=TIGHT))
    ]
    cases += [replace(BASE, preempt_every=k) for k in PREEMPT_EVERY]
    cases += [replace(BASE, max_num_seqs=n) for n in (1, 2, 3, 5)]
    cases += [replace(BASE, shuffle_seed=s) for s in (1, 2)]
    cases += [replace(BASE, order_seed=s) for s in (1, 2, 3)]
    cases += [replace(BASE, poison=True)]
    cases += [replace(BASE, victim=v, pool_tokens=112) for v in VICTIM_POLICIES]
    cases += [replace(BASE, pool_tokens=112)]
    cases += [replace(BASE, implementation=i) for i in ("reference", *IMPLEMENTATIONS)]
    cases += [
        replace(BASE, pressure=p, pool_tokens=TIGHT, host_blocks=8) for p in PRESSURES
    ]
    cases += [
        replace(BASE, pressure=p, preempt_every=2, host_blocks=16)
        for p in ("preempt_recompute", "preempt_swap", "paper")
    ]
    cases += [replace(BASE, admission=a, pool_tokens=TIGHT) for a in ADMISSION_POLICIES]
    cases += [replace(CACHED, scheduling=s) for s in SCHEDULING_POLICIES]
    cases += [
        replace(CACHED, block_size=b, granularity=g) for b in BLOCK_SIZES for g in GRAIN
    ]
    cases += [replace(CACHED, eviction=e, pool_tokens=TIGHT) for e in EVICTION_POLICIES]
    cases += [
        replace(CACHED, host_write=w, pool_tokens=TIGHT, host_blocks=12) for w in WRITES
    ]
    cases += [
        replace(CACHED, deduplicate=False),
        replace(CACHED, deduplicate=False, pool_tokens=TIGHT, max_num_seqs=8),
        replace(CACHED, hold_shared_prefixes=True),
        replace(CACHED, force_miss=True),
        replace(CACHED, poison=True, granularity="token", shuffle_seed=1),
        replace(CACHED, pressure="preempt_swap", preempt_every=3, host_blocks=8),
        replace(CACHED, host_blocks=4, delay_steps=2, pool_tokens=TIGHT),
        replace(CACHED, host_blocks=3, disk=True, pool_tokens=TIGHT),
    ]
    return cases


def combined(count: int) -> list[Case]:
    rng = np.random.default_rng(11)

    def one_of(values):
        return values[int(rng.integers(len(values)))]

    def sharing(block_size: int) -> dict[str, Any]:
        """Of the allocator and what only the paged one offers."""
        allocator = one_of(("paged",) * 3 + ALLOCATORS)
        if allocator != "paged":
            return {"allocator": allocator}
        host_blocks = one_of((0, 256))
        return {
            "pool_tokens": one_of((TIGHT, POOL_TOKENS))
            if block_size <= 16
            else POOL_TOKENS,
            "pressure": one_of(PRESSURES) if host_blocks else "preempt_recompute",
            "admission": one_of(tuple(ADMISSION_POLICIES)),
            "scheduling": one_of(tuple(SCHEDULING_POLICIES)),
            "hold_shared_prefixes": bool(rng.integers(2)),
            "prefix_caching": bool(rng.integers(4)),
            "granularity": one_of(GRAIN),
            "eviction": one_of(tuple(EVICTION_POLICIES)),
            "deduplicate": bool(rng.integers(2)),
            "host_blocks": host_blocks,
            "host_write": one_of(WRITES),
            "delay_steps": one_of((0, 0, 2)),
            "force_miss": not rng.integers(8),
        }

    def draw() -> Case:
        block_size = one_of(BLOCK_SIZES)
        chunked_prefill = bool(rng.integers(4))
        return Case(
            block_size=block_size,
            chunked_prefill=chunked_prefill,
            chunk=one_of(CHUNKS) if chunked_prefill else UNCUT,
            mix_prefill=bool(rng.integers(3)),
            batching=one_of(("iteration", *BATCHINGS)),
            max_num_seqs=one_of((1, 3, 5, 8)),
            preempt_every=one_of(PREEMPT_EVERY),
            victim=one_of(tuple(VICTIM_POLICIES)),
            shuffle_seed=one_of((None, 1, 2)),
            order_seed=one_of((None, 1, 2, 3)),
            poison=bool(rng.integers(2)),
            implementation=one_of(IMPLEMENTATIONS),
            aborts={int(rng.integers(20)): int(rng.integers(len(SHORT_LENGTHS)))},
            **sharing(block_size),
        )

    return [draw() for _ in range(count)]


def assert_same_tokens(case: Case, lengths: Lengths = LENGTHS) -> None:
    got, expected = serve(case, workload(lengths)), base_tokens(lengths)
    for sample, tokens in got.items():
        assert tokens == expected[sample], (case, sample)


@pytest.mark.parametrize("case", alone(), ids=str)
def test_each_axis_alone(case):
    assert_same_tokens(case)


def test_random_combinations(request):
    for index, case in enumerate(combined(request.config.getoption("--random-cases"))):
        assert_same_tokens(case, SHORT_LENGTHS)
        if index % CASES_PER_CLEARING == CASES_PER_CLEARING - 1:
            jax.clear_caches()  # see `give_programs_back` in conftest.py


def test_cancellation_at_every_step():
    """Each request in turn is the one that is cancelled."""
    steps = count_steps(BASE, workload(SHORT_LENGTHS))
    assert steps > len(SHORT_LENGTHS)
    for step in range(steps):
        aborts = {step: step % len(SHORT_LENGTHS)}
        assert_same_tokens(replace(BASE, aborts=aborts), SHORT_LENGTHS)


def test_full_product(request):
    if not request.config.getoption("--full"):
        pytest.skip("the full product runs with --full (hours)")
    for block_size, allocator, chunk, preempt_every, max_num_seqs in itertools.product(
        BLOCK_SIZES, ALLOCATORS, CHUNKS, PREEMPT_EVERY, (1, 3, 8)
    ):
        assert_same_tokens(
            replace(
                BASE,
                block_size=block_size,
                allocator=allocator,
                chunk=chunk,
                preempt_every=preempt_every,
                max_num_seqs=max_num_seqs,
                poison=True,
            )
        )
