"""The differential harness: one workload, many ways to serve it, the same tokens.

The oracle is dense attention without any cache. `smallest_gap` is the distance between
the two best (perturbed) logits of any step; while it exceeds `SMALLEST_GAP`, float32
rounding cannot change a token, and every difference is a bug.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_blocks import KVBlocks
from paxkv.building import build_engine
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.device_executor import DeviceExecutor, empty_plan
from paxkv.engine import Engine
from paxkv.invariants import check_invariants
from paxkv.models.decoder import Decoder
from paxkv.sampling import scores
from paxkv.sampling_params import SamplingParams
from paxkv.sampling_table import SamplingTable
from paxkv.sequence_tables import SequenceTables
from paxkv.types import FinishReason, Plan, RowStart, StepResult
from tests.dense import dense_logits
from tests.tiny_model import tiny_decoder

SMALLEST_GAP = 1e-3
POOL_TOKENS = 256  # usable positions, whatever the block size
MAX_SEQS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request of the workload."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to serve the workload."""

    block_size: int = 16
    allocator: str = "paged"
    chunk: int = 64  # token budget of a step
    max_num_seqs: int = MAX_SEQS
    preempt_every: int = 0
    victim: str = "newest"
    shuffle_seed: int | None = None
    poison: bool = False
    pool_tokens: int = POOL_TOKENS
    aborts: Mapping[int, int] = field(default_factory=dict)  # step -> request index
    order_seed: int | None = None  # None: requests arrive as listed
    implementation: str = "xla"


BASE = Case()


class PoisonExecutor:
    """Fills every block that no sequence owns with NaN before each step."""

    def __init__(self, executor: DeviceExecutor):
        self.executor = executor

    def run(self, plan: Plan) -> StepResult:
        poisoned = []
        tables = plan.tables.block_tables
        for blocks, table in zip(self.executor.cache, tables, strict=True):
            owned = np.zeros(blocks.num_blocks, bool)
            owned[np.unique(table)] = True
            owned[0] = False  # nothing may be read from the null block either
            poisoned.append(_poisoned(blocks, jax.device_put(owned)))
        self.executor.cache = tuple(poisoned)
        return self.executor.run(plan)


@partial(jax.jit, donate_argnums=0)
def _poisoned(blocks, owned):
    rows = jnp.where(owned[None, :, None, None, None], blocks.rows(), jnp.nan)
    return KVBlocks.of_rows(blocks.layout, rows)


def engine_of(case: Case, decoder: Decoder, seed: int = 0) -> tuple[Engine, DeviceExecutor]:
    config = EngineConfig(
        model="tiny",
        seed=seed,
        implementation=case.implementation,
        check_invariants=True,
        cache=CacheConfig(
            block_size=case.block_size,
            num_blocks=max(case.pool_tokens // case.block_size, 1) + 1,
            allocator=case.allocator,
            shuffle_seed=case.shuffle_seed,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=case.chunk,
            preempt_every=case.preempt_every,
            victim=case.victim,
        ),
    )
    engine, executor = build_engine(config, decoder)
    if case.poison:
        engine.executor = PoisonExecutor(executor)
    return engine, executor


def serve(
    case: Case, work: tuple[Work, ...], decoder: Decoder | None = None
) -> dict[int, tuple[int, ...]]:
    """Tokens per request index of those that were not aborted. Checks that every
    request ended, with the reason it should, and that all blocks came back."""
    engine, executor = engine_of(case, decoder or tiny_decoder())
    order = np.arange(len(work))
    if case.order_seed is not None:
        order = np.random.default_rng(case.order_seed).permutation(len(work))
    for index in order:
        engine.add(work[index].prompt_ids, work[index].sampling, request_id=int(index))
    tokens: dict[int, list[int]] = {index: [] for index in range(len(work))}
    reasons: dict[int, FinishReason] = {}
    for step, outcome in enumerate(_steps(engine)):
        for update in outcome.updates:
            tokens[update.request_id].extend(update.new_token_ids)
            if update.finish is not None:
                assert update.request_id not in reasons, "ended twice"
                reasons[update.request_id] = update.finish.reason
        if step in case.aborts and case.aborts[step] not in reasons:
            assert engine.abort(case.aborts[step])
    assert set(reasons) == set(tokens), "a request vanished"
    aborted = set(case.aborts.values())
    for index, reason in reasons.items():
        expected = {FinishReason.LENGTH, FinishReason.STOP_TOKEN}
        expected |= {FinishReason.ABORTED} if index in aborted else set()
        assert reason in expected, (index, reason)
    check_invariants(engine.scheduler)
    assert engine.scheduler.allocator.num_free == executor.cache_plan.num_blocks - 1
    return {
        index: tuple(ids)
        for index, ids in tokens.items()
        if reasons[index] is not FinishReason.ABORTED
    }


def count_steps(case: Case, work: tuple[Work, ...]) -> int:
    """Engine steps until all requests have ended."""
    engine, _ = engine_of(case, tiny_decoder())
    for request in work:
        engine.add(request.prompt_ids, request.sampling)
    return sum(1 for _ in _steps(engine))


def _steps(engine: Engine, most: int = 5_000) -> Iterator:
    for _ in range(most):
        if not engine.has_unfinished:
            return
        yield engine.step()
    raise AssertionError(f"requests are unfinished after {most} steps")


def smallest_gap(
    decoder: Decoder, work: Work, tokens: tuple[int, ...], *, request_id: int, seed: int
) -> float:
    """Checks that every token is the best of its (perturbed) logits under dense
    attention; the smallest distance of any of them to the second best."""
    num_prompt, count = len(work.prompt_ids), len(tokens)
    model = decoder.config
    logits = dense_logits(decoder, work.prompt_ids + tokens)[num_prompt - 1 : -1]
    table = SamplingTable(1, model.vocab_size, seed, model.eos_token_ids)
    table.start(
        RowStart(
            row=0,
            request_id=request_id,
            num_prompt_tokens=num_prompt,
            sampling=work.sampling,
        )
    )
    host = SequenceTables(1, model.max_context, (1,))
    host.write_known(0, work.prompt_ids, tokens)
    plan = replace(
        empty_plan(host),
        rows=np.zeros(count, np.int32),
        starts=np.arange(num_prompt - 1, num_prompt - 1 + count, dtype=np.int32),
        lengths=np.ones(count, np.int32),
        samples=np.ones(count, bool),
    )
    inputs, features = table.pack(plan, count)
    perturbed = np.asarray(scores(jnp.asarray(logits), inputs, features))
    assert tuple(perturbed.argmax(axis=-1)) == tokens
    best_two = np.sort(perturbed, axis=-1)[:, -2:]
    return float((best_two[:, 1] - best_two[:, 0]).min())
