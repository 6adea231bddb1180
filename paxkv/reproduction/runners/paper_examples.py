"""Worked examples: requests through the scheduler, step by step, and who holds which block.

Of the tree it reads the trial's caches and policies, and `example` (`ExampleConfig`). There
is no model: tokens mean nothing, and the beams that go on are told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paxkv.allocators.paged import PagedAllocator
from paxkv.block_pool import BlockPool
from paxkv.reproduction.runners.trials import trial_of
from paxkv.sampling_params import SamplingParams
from paxkv.scheduler import Scheduler
from paxkv.scheduler_building import build_scheduler
from paxkv.trials.trial_config import TrialConfig
from paxkv.types import Plan, Request, StepResult, TokenLogprobs

KIND = "computed"
# by how much log-probabilities fall: from child to child, and to those that do not go on
LESS, UNLIKELY = 1e-3, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleConfig:
    """Requests that come at once, and how many steps of them are looked at."""

    prompt_tokens: tuple[int, ...]  # of each request
    output_tokens: tuple[int, ...]
    num_steps: int
    num_samples: int = 1
    use_beam_search: bool = False
    # per step, of which live beam each of the next ones is the child; then themselves
    parents: tuple[tuple[int, ...], ...] = ()
    free_blocks: tuple[int, ...] = ()  # of a paged pool, handed out first, in this order


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Lists have an entry per step, as of its end, and in it one per running sequence.
    `refcounts` are of the sequence's blocks ([]: regions are not shared); the partition of
    positions is of the last step."""
    del profile  # no time passes
    trial = trial_of(tree)
    example = ExampleConfig(**tree["example"])
    scheduler = _scheduler(trial)
    if isinstance(scheduler.allocator, PagedAllocator):
        _order_free_blocks(scheduler.allocator.pools[0], example.free_blocks)
    for request in _requests(example):
        ends = scheduler.add(request)
        assert not ends, f"the example's request is refused: {ends}"
    tables: list[list[list[int]]] = []
    refcounts: list[list[list[int]]] = []
    plan = None
    for step in range(example.num_steps):
        plan = scheduler.plan(float(step))
        parents = example.parents[step] if step < len(example.parents) else ()
        scheduler.commit(plan, _result(plan, parents), float(step))
        tables.append(_tables(scheduler))
        refcounts.append([_owners(scheduler, blocks) for blocks in tables[-1]])
    assert plan is not None, "an example has steps"
    (partition,) = plan.partitions
    return {
        "tables": tables,
        "refcounts": refcounts,
        "num_copied_blocks": scheduler.journal.num_copied_blocks,
        "token_states": partition.token_states,
        "reserved": partition.reserved,
        "internal": partition.internal,
    }


def _scheduler(trial: TrialConfig) -> Scheduler:
    engine = trial.engine
    assert engine.cache.num_blocks is not None, "an example says how many blocks there are"
    return build_scheduler(
        engine.cache,
        engine.scheduler,
        num_blocks=(engine.cache.num_blocks,),
        max_context=trial.max_context,
        vocab_size=trial.model.vocab_size,
        check_invariants=True,
    )


def _order_free_blocks(pool: BlockPool, first: Sequence[int]) -> None:
    taken = pool.allocate(pool.num_free)
    pool.free([block for block in taken if block not in first])
    pool.free(first)


def _requests(example: ExampleConfig) -> Iterator[Request]:
    lengths = zip(example.prompt_tokens, example.output_tokens, strict=True)
    for request_id, (num_prompt, num_outputs) in enumerate(lengths):
        yield Request(
            request_id=request_id,
            prompt_ids=tuple(range(1, num_prompt + 1)),
            sampling=SamplingParams(
                max_tokens=num_outputs,
                ignore_eos=True,
                n=example.num_samples,
                use_beam_search=example.use_beam_search,
            ),
            arrival_s=0.0,
        )


def _tables(scheduler: Scheduler) -> list[list[int]]:
    """Blocks of each running sequence; beams in the order of the search."""
    running = scheduler.running
    order = sorted(running.requests, key=_place)
    return [scheduler.tables.blocks(0, running.row_of(one)) for one in order]


def _place(request: Request) -> tuple[int, int]:
    in_group = request.group.sequences
    return request.request_id, in_group.index(request)


def _owners(scheduler: Scheduler, blocks: Sequence[int]) -> list[int]:
    allocator = scheduler.allocator
    if not isinstance(allocator, PagedAllocator):
        return []
    return [allocator.pools[0].refcounts[block] for block in blocks]


def _result(plan: Plan, parents: Sequence[int]) -> StepResult:
    """Tokens of a step; of beams, candidates such that the children of `parents` go on."""
    logprobs = tuple(_candidates(one, parents) for one in plan.requests)
    tokens = np.ones(len(plan.rows), np.int32)
    is_search = any(each is not None for each in logprobs)
    return StepResult(tokens=tokens, duration_s=0.0, logprobs=logprobs if is_search else ())


def _candidates(one: Request, parents: Sequence[int]) -> TokenLogprobs | None:
    """As many as `parents` names the beam are likely. Each child is behind those of better
    beams, so that the live beams are in the order of `parents`. None: it is no beam."""
    if one.group.beams is None:
        return None
    width, (_, beam) = one.group.num_sequences, _place(one)
    num_chosen = parents.count(beam) if parents else 1
    logprobs = tuple(
        -LESS * (index + width * beam) - (0.0 if index < num_chosen else UNLIKELY)
        for index in range(width)
    )
    return TokenLogprobs(
        token_id=0,
        logprob=logprobs[0],
        rank=1,
        top_ids=tuple(range(width)),
        top_logprobs=logprobs,
    )
