"""The differential harness: one workload, many ways to serve it, the same tokens.

The oracle is dense attention without any cache. `smallest_gap` is the distance between
the two best (perturbed) logits of any step; while it exceeds `SMALLEST_GAP`, float32
rounding cannot change a token, and every difference is a bug.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_blocks import KVBlocks
from paxkv.allocators.paged import PagedAllocator
from paxkv.block_pool import BlockPool
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
# what `swap_or_recompute` compares: both ways are taken
COSTS = {"swap_s_per_block": 1e-4, "recompute_s_per_token": 1e-4}


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
    chunked_prefill: bool = True
    mix_prefill: bool = True
    batching: str = "iteration"
    max_num_seqs: int = MAX_SEQS
    preempt_every: int = 0
    victim: str = "newest"
    shuffle_seed: int | None = None
    poison: bool = False
    pool_tokens: int = POOL_TOKENS
    aborts: Mapping[int, int] = field(default_factory=dict)  # step -> request index
    order_seed: int | None = None  # None: requests arrive as listed
    implementation: str = "xla"
    pressure: str = "preempt_recompute"
    admission: str = "watermark"
    scheduling: str = "fcfs"
    hold_shared_prefixes: bool = False
    prefix_caching: bool = False
    granularity: str = "block"
    eviction: str = "lru"
    deduplicate: bool = True
    host_blocks: int = 0
    host_write: str = "write_back"
    disk: bool = False
    force_miss: bool = False
    delay_steps: int = 0
    num_window_blocks: int | None = None


BASE = Case()


class PoisonExecutor:
    """Fills every block that has neither owner nor key with NaN before each step, and the
    null block, from which nothing may be read either."""

    def __init__(self, executor: DeviceExecutor, pools: Sequence[BlockPool] | None):
        self.executor = executor
        self.pools = pools

    def run(self, plan: Plan) -> StepResult:
        executor = self.executor
        executor.cache = executor.transfers.run(executor.cache, plan.moves)
        poisoned = []
        tables = plan.tables.block_tables
        for group, (blocks, table) in enumerate(zip(executor.cache, tables, strict=True)):
            kept = np.zeros(blocks.num_blocks, bool)
            kept[np.unique(table)] = True
            if self.pools is not None:
                nodes = self.pools[group].node_of
                kept |= np.array([node is not None for node in nodes])
            kept[0] = False
            poisoned.append(_poisoned(blocks, jax.device_put(kept)))
        executor.cache = tuple(poisoned)
        return executor.run(replace(plan, moves=()))


@partial(jax.jit, donate_argnums=0)
def _poisoned(blocks, owned):
    rows = jnp.where(owned[None, :, None, None, None], blocks.rows(), jnp.nan)
    return KVBlocks.of_rows(blocks.layout, rows)


def engine_of(
    case: Case, decoder: Decoder, seed: int = 0, folder: str | None = None
) -> tuple[Engine, DeviceExecutor]:
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
            num_window_blocks=case.num_window_blocks,
            prefix_caching=case.prefix_caching,
            granularity=case.granularity,
            eviction=case.eviction,
            deduplicate=case.deduplicate,
            host_blocks=case.host_blocks,
            host_write=case.host_write,
            disk_folder=folder if case.disk else None,
            poison=case.poison,
            force_miss=case.force_miss,
            delay_steps=case.delay_steps,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=case.chunk,
            chunked_prefill=case.chunked_prefill,
            mix_prefill=case.mix_prefill,
            batching=case.batching,
            preempt_every=case.preempt_every,
            victim=case.victim,
            pressure=case.pressure,
            admission=case.admission,
            scheduling=case.scheduling,
            hold_shared_prefixes=case.hold_shared_prefixes,
            **COSTS if case.pressure == "swap_or_recompute" else {},
        ),
    )
    engine, executor = build_engine(config, decoder)
    if case.poison:
        allocator = engine.scheduler.allocator
        pools = allocator.pools if isinstance(allocator, PagedAllocator) else None
        engine.executor = PoisonExecutor(executor, pools)
    return engine, executor


Tokens = dict[tuple[int, int], tuple[int, ...]]  # by request index and sample index


def serve(case: Case, work: tuple[Work, ...], decoder: Decoder | None = None) -> Tokens:
    """Tokens of all requests that were not aborted. Checks that every request ended, with
    the reason it should, and that all blocks came back."""
    with tempfile.TemporaryDirectory() as folder:
        engine, executor = engine_of(case, decoder or tiny_decoder(), folder=folder)
        served = _serve(case, work, engine)
        engine.scheduler.journal.listener = None
        if executor.transfers.disk_store is not None:
            executor.transfers.disk_store.close()
    return served


def _serve(case: Case, work: tuple[Work, ...], engine: Engine) -> Tokens:
    order = np.arange(len(work))
    if case.order_seed is not None:
        order = np.random.default_rng(case.order_seed).permutation(len(work))
    for index in order:
        engine.add(work[index].prompt_ids, work[index].sampling, request_id=int(index))
    tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
    reasons: dict[tuple[int, int], FinishReason] = {}
    ended: set[int] = set()
    for step, outcome in enumerate(_steps(engine)):
        for update in outcome.updates:
            sample = update.request_id, update.sample_index
            assert update.request_id not in ended, "news after the end"
            tokens[sample].extend(update.new_token_ids)
            if update.finish is not None:
                assert sample not in reasons, "ended twice"
                reasons[sample] = update.finish.reason
            if update.ends_request:
                ended.add(update.request_id)
        if step in case.aborts and case.aborts[step] not in ended:
            assert engine.abort(case.aborts[step])
    assert ended == set(range(len(work))), "a request vanished"
    aborted = set(case.aborts.values())
    for sample, reason in reasons.items():
        expected = {FinishReason.LENGTH, FinishReason.STOP_TOKEN}
        expected |= {FinishReason.ABORTED} if sample[0] in aborted else set()
        assert reason in expected, (sample, reason)
    check_invariants(engine.scheduler)
    return {
        sample: tuple(ids)
        for sample, ids in tokens.items()
        if reasons[sample] is not FinishReason.ABORTED
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
    decoder: Decoder,
    work: Work,
    tokens: tuple[int, ...],
    *,
    request_id: int,
    seed: int,
    sample_index: int = 0,
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
            sample_index=sample_index,
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
