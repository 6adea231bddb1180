"""Stand-ins for what is slow or has a mind of its own: executor, clock, requests."""

import zlib
from collections.abc import Callable
from dataclasses import fields

import numpy as np

from paxkv.beam import BeamParams, BeamSearch, Hypothesis
from paxkv.block_pool import NULL_BLOCK
from paxkv.cache_keys import token_bytes
from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.engine import Engine
from paxkv.events import Listener
from paxkv.moves import CopyBlock, Load, Move, Poison, Spill, SwapIn, SwapOut
from paxkv.request_options import Adapter, RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.scheduler import Scheduler
from paxkv.scheduler_building import build_scheduler
from paxkv.types import Plan, Request, RowStart, StepResult, TokenLogprobs

VOCAB_SIZE = 251
UNWRITTEN = -1


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self, now_s: float = 0.0):
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        self.now_s += duration_s


def fake_token(
    known_tokens: np.ndarray, vocab_size: int = VOCAB_SIZE, sample_index: int = 0
) -> int:
    """The token that a `FakeExecutor` lets follow: a hash of all tokens so far."""
    text = known_tokens.astype(np.int32).tobytes()
    return zlib.crc32(text, sample_index) % vocab_size


def fake_candidates(
    known_tokens: np.ndarray, count: int, vocab_size: int = VOCAB_SIZE
) -> list[tuple[int, float]]:
    """The likeliest next tokens and their log-probabilities: hashes, too, best first."""
    rng = np.random.default_rng(zlib.crc32(known_tokens.astype(np.int32).tobytes()))
    ids = rng.choice(vocab_size, count, replace=False)
    logprobs = -np.cumsum(rng.uniform(0.01, 1.0, count))
    return list(zip(ids.tolist(), logprobs.tolist(), strict=True))


def fake_completion(
    prompt_ids: tuple[int, ...], num_tokens: int, sample_index: int = 0
) -> tuple[int, ...]:
    """What a `FakeExecutor` generates for a prompt if no stop token ends it."""
    known = list(prompt_ids)
    for _ in range(num_tokens):
        known.append(fake_token(np.asarray(known), sample_index=sample_index))
    return tuple(known[len(prompt_ids) :])


def fake_beams(prompt_ids: tuple[int, ...], params: BeamParams) -> list[Hypothesis]:
    """What beam search finds with a `FakeExecutor`'s log-probabilities."""
    search, live = BeamSearch(params), [list(prompt_ids)]
    while live:
        candidates = [fake_candidates(np.asarray(x), search.num_candidates) for x in live]
        live = [[*live[x.parent], x.token_id] for x in search.advance(candidates)]
    return search.hypotheses()


class FakeExecutor:
    """A model that reads its context back from a pool, where a token is its own K/V.

    Sampled tokens depend on all that is read through the block tables, so a wrong
    table, a block with two writers or a K/V that was never computed shows in the output.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        clock: FakeClock | None = None,
        duration_s: float = 1.0,
        token_of: Callable[..., int] = fake_token,
        num_groups: int = 1,
    ):
        self.block_size = block_size
        shape = (num_groups, num_blocks, block_size)
        self.pools = np.full(shape, UNWRITTEN, np.int32)
        self.clock = clock
        self.duration_s = duration_s
        self.token_of = token_of
        self.num_runs = 0
        self.started: dict[int, RowStart] = {}
        self.host: dict[tuple[int, int], np.ndarray] = {}  # by group and slot
        self.disk: dict[tuple[int, bytes], np.ndarray] = {}

    def run(self, plan: Plan) -> StepResult:
        self.num_runs += 1
        for move in plan.moves:
            self._move(move)
        for start in plan.started:
            self.started[start.row] = start
        tables = plan.tables.block_tables
        tokens = np.full(len(plan.rows), UNWRITTEN, np.int32)
        logprobs: list[TokenLogprobs | None] = [None] * len(plan.rows)
        slices = zip(plan.rows, plan.starts, plan.lengths, strict=True)
        for row, start, length in slices:
            for pool, table in zip(self.pools, tables, strict=True):
                first = max(start, plan.tables.first_write[row])
                written = plan.tables.tokens[row, first : start + length]
                self._write(pool, table[row], written, first)
        for index in np.flatnonzero(plan.samples):
            end = plan.starts[index] + plan.lengths[index]
            row = plan.rows[index]
            groups = zip(self.pools, tables, plan.tables.num_behind, strict=True)
            contexts = []
            for pool, table, behind in groups:
                first = behind[row] * self.block_size  # what no layer of the group sees
                seen = self._read(pool, table[row], first, end)
                unseen = plan.tables.tokens[row, :first]
                contexts.append(np.concatenate([unseen, seen]))
            assert all((context == contexts[0]).all() for context in contexts)
            row_start = self.started[int(row)]
            tokens[index] = self.token_of(contexts[0], sample_index=row_start.sample_index)
            if row_start.num_top is not None:
                logprobs[index] = self._logprobs(contexts[0], tokens[index], row_start)
        if self.clock is not None:
            self.clock.advance(self.duration_s)
        asked = any(entry is not None for entry in logprobs)
        return StepResult(
            tokens=tokens,
            duration_s=self.duration_s,
            logprobs=tuple(logprobs) if asked else (),
        )

    def _logprobs(
        self, context: np.ndarray, token: int, row_start: RowStart
    ) -> TokenLogprobs:
        best = fake_candidates(context, row_start.num_top)
        return TokenLogprobs(
            token_id=int(token),
            logprob=-(int(token) + 1) / VOCAB_SIZE,
            rank=1,
            top_ids=tuple(token_id for token_id, _ in best),
            top_logprobs=tuple(logprob for _, logprob in best),
        )

    def _move(self, move: Move) -> None:
        pool = self.pools[move.group]
        match move:
            case CopyBlock(src=src, dst=dst):
                pool[dst] = pool[src]
            case SwapOut(block=block, host_slot=slot):
                self.host[move.group, slot] = pool[block].copy()
            case SwapIn(host_slot=slot, block=block):
                pool[block] = self.host[move.group, slot]
            case Spill(host_slot=slot, digest=digest):
                self.disk[move.group, digest] = self.host[move.group, slot].copy()
            case Load(payload=payload, block=block):
                pool[block] = np.frombuffer(payload, np.int32)
            case Poison(blocks=blocks):
                pool[list(blocks)] = UNWRITTEN

    def _write(
        self, pool: np.ndarray, table: np.ndarray, tokens: np.ndarray, start: int
    ) -> None:
        positions = np.arange(start, start + len(tokens))
        blocks = table[positions // self.block_size]
        assert (blocks != NULL_BLOCK).all(), "a slice has no block to write to"
        pool[blocks, positions % self.block_size] = tokens

    def _read(
        self, pool: np.ndarray, table: np.ndarray, start: int, end: int
    ) -> np.ndarray:
        indices = np.arange(start // self.block_size, -(-end // self.block_size))
        context = pool[table[indices]].reshape(-1)[: end - start]
        assert (context != UNWRITTEN).all(), "K/V is read that nobody wrote"
        return context


def make_request(
    prompt: int | tuple[int, ...],
    max_tokens: int = 8,
    *,
    request_id: int = 0,
    arrival_s: float = 0.0,
    options: RequestOptions | None = None,
    **sampling,
) -> Request:
    """A request; a prompt given as a number has that many tokens."""
    prompt_ids = tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    return Request(
        request_id=request_id,
        prompt_ids=prompt_ids,
        sampling=SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True, **sampling}),
        arrival_s=arrival_s,
        options=options or RequestOptions(),
        prompt_bytes=token_bytes(prompt_ids),
    )


CACHE_SETTINGS = {field.name for field in fields(CacheConfig)}


def make_scheduler(
    *,
    num_blocks: int = 17,
    max_context: int = 64,
    vocab_size: int = VOCAB_SIZE,
    eos_token_ids: tuple[int, ...] = (0,),
    num_groups: int = 1,
    windows: tuple[int | None, ...] | None = None,
    check_invariants: bool = True,
    listener: Listener | None = None,
    adapters: tuple[Adapter, ...] = (),
    **settings,
) -> Scheduler:
    """A scheduler with its own pool; `settings` are of `CacheConfig` and
    `SchedulerConfig`."""
    in_cache = {key: settings.pop(key) for key in CACHE_SETTINGS & set(settings)}
    cache = CacheConfig(**{"block_size": 4, **in_cache})
    config = SchedulerConfig(**settings)
    windows = (None,) * num_groups if windows is None else windows
    return build_scheduler(
        cache,
        config,
        num_blocks=(num_blocks,) * len(windows),
        windows=windows,
        max_context=max_context,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        check_invariants=check_invariants,
        adapters=adapters,
        listener=listener,
    )


def make_engine(clock: FakeClock | None = None, **settings) -> Engine:
    """An engine around `make_scheduler(**settings)` and a `FakeExecutor`."""
    scheduler = make_scheduler(**settings)
    clock = clock or FakeClock()
    executor = FakeExecutor(
        scheduler.allocator.usage(0).num_blocks,
        scheduler.allocator.block_size,
        clock=clock,
        num_groups=len(scheduler.tables.block_tables),
    )
    return Engine(scheduler, executor, clock)
