"""Same tokens always: every way to serve a workload against dense attention.

Each axis alone against the base case, then seeded random combinations (200, or
`--random-cases`), or the full product with `--full`.
"""

import functools
import itertools
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.sampling_params import SamplingParams
from tests.harness import (
    BASE,
    SMALLEST_GAP,
    Case,
    Work,
    count_steps,
    serve,
    smallest_gap,
)
from tests.tiny_model import tiny_decoder

BLOCK_SIZES = (1, 2, 3, 8, 16, 64, 256)
ALLOCATORS = ("paged", "contiguous_max", "contiguous_pow2", "contiguous_oracle")
CHUNKS = (1, 2, 3, 7, 16, 33, 64, 128)  # the longest prompt has 90 tokens
PREEMPT_EVERY = (0, 1, 2, 3, 7)
# `cpu` needs the extra of that name, which scripts/test.sh installs
IMPLEMENTATIONS = ("xla", "cpu") if find_spec("numba") else ("xla",)
ENGINE_SEED = 0


# (prompt, output) tokens of each request, around block borders
LENGTHS = ((1, 9), (15, 8), (16, 8), (17, 5), (33, 12), (64, 6), (90, 10), (5, 40))
# of the random combinations: fewer steps each, so that there can be many
SHORT_LENGTHS = ((1, 6), (16, 5), (33, 4), (70, 5), (5, 9))


@functools.cache
def workload(lengths: tuple[tuple[int, int], ...] = LENGTHS) -> tuple[Work, ...]:
    """Greedy and seeded requests side by side."""
    rng = np.random.default_rng(5)
    work = []
    for index, (prompt_len, max_tokens) in enumerate(lengths):
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if index % 2 == 0 else 0.8,
            seed=None if index in (3, 7) else 1000 + index,
            ignore_eos=True,
        )
        prompt = rng.integers(0, 60, prompt_len).tolist()
        work.append(Work(prompt_ids=tuple(prompt), sampling=sampling))
    return tuple(work)


@functools.cache
def base_tokens(
    lengths: tuple[tuple[int, int], ...] = LENGTHS,
) -> dict[int, tuple[int, ...]]:
    return serve(BASE, workload(lengths))


@pytest.mark.parametrize("lengths", [LENGTHS, SHORT_LENGTHS], ids=["long", "short"])
def test_base_equals_dense_attention_and_gaps_are_wide(lengths):
    """One dense pass over the finished sequence judges every token of it."""
    tokens = base_tokens(lengths)
    for index, work in enumerate(workload(lengths)):
        gap = smallest_gap(
            tiny_decoder(), work, tokens[index], request_id=index, seed=ENGINE_SEED
        )
        print(f"request {index}: smallest top-2 gap {gap:.4f}")
        assert gap > SMALLEST_GAP


def alone() -> list[Case]:
    """Every value of every axis, the others as in the base case."""
    cases = [replace(BASE, block_size=b) for b in BLOCK_SIZES]
    cases += [replace(BASE, allocator=a) for a in ALLOCATORS]
    cases += [replace(BASE, chunk=c) for c in CHUNKS]
    cases += [replace(BASE, preempt_every=k) for k in PREEMPT_EVERY]
    cases += [replace(BASE, max_num_seqs=n) for n in (1, 2, 3, 5)]
    cases += [replace(BASE, shuffle_seed=s) for s in (1, 2)]
    cases += [replace(BASE, order_seed=s) for s in (1, 2, 3)]
    cases += [replace(BASE, poison=True)]
    cases += [replace(BASE, victim=v, pool_tokens=112) for v in VICTIM_POLICIES]
    cases += [replace(BASE, pool_tokens=112)]
    cases += [replace(BASE, implementation=i) for i in ("reference", *IMPLEMENTATIONS)]
    return cases


def combined(count: int) -> list[Case]:
    rng = np.random.default_rng(11)

    def one_of(values):
        return values[int(rng.integers(len(values)))]

    return [
        Case(
            block_size=one_of(BLOCK_SIZES),
            allocator=one_of(ALLOCATORS),
            chunk=one_of(CHUNKS),
            max_num_seqs=one_of((1, 3, 5, 8)),
            preempt_every=one_of(PREEMPT_EVERY),
            victim=one_of(tuple(VICTIM_POLICIES)),
            shuffle_seed=one_of((None, 1, 2)),
            order_seed=one_of((None, 1, 2, 3)),
            poison=bool(rng.integers(2)),
            implementation=one_of(IMPLEMENTATIONS),
            aborts={int(rng.integers(20)): int(rng.integers(len(SHORT_LENGTHS)))},
        )
        for _ in range(count)
    ]


def assert_same_tokens(case: Case, lengths: tuple[tuple[int, int], ...] = LENGTHS) -> None:
    got, expected = serve(case, workload(lengths)), base_tokens(lengths)
    for index, tokens in got.items():
        assert tokens == expected[index], (case, index)


@pytest.mark.parametrize("case", alone(), ids=str)
def test_each_axis_alone(case):
    assert_same_tokens(case)


def test_random_combinations(request):
    for case in combined(request.config.getoption("--random-cases")):
        assert_same_tokens(case, SHORT_LENGTHS)


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
