"""An engine served by any operations in any order, and all that must hold meanwhile.

Choices come from outside: of hypothesis (tests/paxkv/test_state_machine.py), or of a
random number generator (tests/random_operations.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from paxkv.beam import BeamParams
from paxkv.cache_keys import TOKEN_BYTES, block_key, isolation_key
from paxkv.invariants import check_invariants
from paxkv.prefix_cache import CacheNode
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.scheduler import Scheduler
from paxkv.tiers.disk_store import DiskStore
from paxkv.types import FinishReason, PoolPartition, RequestUpdate, StepMetrics
from tests.fakes import VOCAB_SIZE, FakeExecutor, fake_beams, fake_completion, make_engine

MAX_CONTEXT = 24
MOST_STEPS = 5_000  # any workload drawn here ends far earlier
COMMON = tuple(range(1, MAX_CONTEXT + 2))  # prompts begin with some of it
CLASSES = ("token_states", "tail", "reserved", "internal", "rounding", "cached", "free")

T = TypeVar("T")


class Choices(Protocol):
    def integer(self, low: int, high: int) -> int:
        """In [low, high]."""

    def one_of(self, options: Sequence[T]) -> T: ...


class FakeDisk(DiskStore):
    """The disk of a `FakeExecutor`, in memory."""

    def __init__(self, executor: FakeExecutor):
        self.blocks = executor.disk  # by group and digest
        self.corrupt: set[tuple[int, bytes]] = set()

    def __contains__(self, key: tuple[bytes, int]) -> bool:
        digest, group = key
        return (group, digest) in self.blocks

    def get(self, digest: bytes, group: int) -> bytes | None:
        key = (group, digest)
        if key in self.corrupt:
            self.corrupt.discard(key)
            del self.blocks[key]
        return self.blocks[key].tobytes() if key in self.blocks else None


class Serving:
    """An engine with everything that was asked of it and that it told."""

    def __init__(self, settings: Mapping[str, Any], *, has_disk: bool = False):
        self.engine = make_engine(
            max_context=MAX_CONTEXT, check_invariants=False, **settings
        )
        self.scheduler = self.engine.scheduler
        self.disk: FakeDisk | None = None
        prefixes = self.scheduler.allocator.prefixes
        if has_disk and prefixes is not None and prefixes.cache.host is not None:
            self.disk = prefixes.disk = FakeDisk(self.engine.executor)
            prefixes.cache.host.spills = True
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.sampling: dict[int, SamplingParams] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finishes: dict[tuple[int, int], FinishReason] = {}
        self.ended: set[int] = set()
        self.pinned: list[tuple[tuple[int, ...], RequestOptions]] = []

    def add(
        self, prompt: tuple[int, ...], sampling: SamplingParams, options: RequestOptions
    ) -> None:
        request_id = self.engine.add(prompt, sampling, options=options)
        self.prompts[request_id], self.sampling[request_id] = prompt, sampling

    def fork(self, choices: Choices) -> None:
        """A child goes on as its parent does."""
        plain = [
            request_id
            for request_id, sampling in self.sampling.items()
            if request_id not in self.scheduler.ended and sampling.num_sequences == 1
        ]
        if plain:
            parent = choices.one_of(plain)
            child = self.engine.fork(parent)
            self.prompts[child] = self.prompts[parent]
            self.sampling[child] = self.sampling[parent]

    def step(self) -> None:
        oldest = next(iter(self.scheduler.running.requests), None)
        outcome = self.engine.step()
        for update in outcome.updates:
            self._take(update)
        if outcome.metrics is not None:
            self._check_accounting(outcome.metrics)
        if oldest is not None and not self.scheduler.config.preempt_every:
            assert oldest not in self.scheduler.waiting, "the oldest was held up"

    def abort(self, choices: Choices) -> None:
        if self.prompts:
            request_id = choices.one_of(sorted(self.prompts))
            had_ended = request_id in self.scheduler.ended
            assert self.engine.abort(request_id) is not had_ended

    def abort_sample(self, choices: Choices) -> None:
        if self.prompts:
            request_id = choices.one_of(sorted(self.prompts))
            if not self.sampling[request_id].use_beam_search:
                self.engine.abort(request_id, sample_index=choices.integer(0, 2))

    def preempt(self, choices: Choices) -> None:
        """What a policy could ask for at the worst moment."""
        candidates = self.scheduler.running.candidates()
        if candidates:
            victim = choices.one_of(candidates)
            self.scheduler.preempting._give_way(victim, swaps=bool(choices.integer(0, 1)))

    def pin(self, num_tokens: int, options: RequestOptions) -> None:
        """One at a time, so that others find room."""
        if self.scheduler.allocator.prefixes is not None and not self.pinned:
            self.engine.pin_prefix(COMMON[:num_tokens], options)
            self.pinned.append((COMMON[:num_tokens], options))

    def unpin(self) -> None:
        if self.pinned:
            self.engine.unpin_prefix(*self.pinned.pop())

    def reset(self) -> None:
        if self.scheduler.allocator.prefixes is not None:
            self.engine.reset_prefix_cache()
            self.pinned.clear()

    def corrupt_disk(self, choices: Choices) -> None:
        """A byte of a file flips, which its checksum tells when it is read."""
        if self.disk is not None and self.disk.blocks:
            self.disk.corrupt.add(choices.one_of(list(self.disk.blocks)))

    def check(self) -> None:
        """What must hold between two operations."""
        check_invariants(self.scheduler)
        check_shared_content(self.scheduler)

    def finish(self) -> None:
        """Whatever happened, the rest can be served to its end."""
        self.unpin()
        for _ in range(MOST_STEPS):
            if not self.engine.has_unfinished:
                break
            self.step()
        assert not self.engine.has_unfinished, f"livelock: {MOST_STEPS} steps"
        assert self.ended == set(self.prompts), "a request vanished"
        for request_id, sampling in self.sampling.items():
            self._check_tokens(request_id, sampling)
        self.check()

    def _take(self, update: RequestUpdate) -> None:
        sample = update.request_id, update.sample_index
        assert sample not in self.finishes, "news of a sample that ended"
        assert update.request_id not in self.ended, "news of a request that ended"
        self.tokens.setdefault(sample, []).extend(update.new_token_ids)
        if update.finish is not None:
            self.finishes[sample] = update.finish.reason
            assert update.metrics is not None
            assert update.metrics.num_output_tokens == len(self.tokens[sample])
        if update.ends_request:
            self.ended.add(update.request_id)

    def _check_accounting(self, metrics: StepMetrics) -> None:
        """Each position of each pool is in exactly one class."""
        allocator = self.scheduler.allocator
        for group, partition in enumerate(metrics.partitions):
            usable = allocator.usage(group).num_blocks - 1
            check_partition(partition, usable * allocator.block_size)

    def _check_tokens(self, request_id: int, sampling: SamplingParams) -> None:
        """Those of a lone request, whoever was served beside it."""
        samples = {s: ids for (r, s), ids in self.tokens.items() if r == request_id}
        prompt = self.prompts[request_id]
        if sampling.use_beam_search:
            reason = self.finishes.get((request_id, 0))
            if reason in (FinishReason.LENGTH, FinishReason.STOP_TOKEN):
                expected = fake_beams(prompt, _beam_params(sampling, prompt))
                found = [tuple(samples[index]) for index in sorted(samples)]
                assert found == [hypothesis.token_ids for hypothesis in expected]
            return
        for sample_index, tokens in samples.items():
            drawn = range(sampling.num_sequences)
            if sampling.num_sequences == sampling.n:
                drawn = (sample_index,)
            assert tuple(tokens) in [
                fake_completion(prompt, len(tokens), index) for index in drawn
            ], f"request {request_id}, sample {sample_index}"


def check_partition(partition: PoolPartition, total: int) -> None:
    """Used + cached + free = total, and no class is negative."""
    counts = {name: getattr(partition, name) for name in CLASSES}
    assert sum(counts.values()) == partition.total == total, counts
    assert min(counts.values()) >= 0, counts


def check_shared_content(scheduler: Scheduler) -> None:
    """A block with a key that a running sequence reads is that of the very same tokens,
    and of a request with the same isolation key."""
    allocator = scheduler.allocator
    if allocator.prefixes is None:
        return
    size = allocator.block_size
    for request, row in zip(
        scheduler.running.requests, scheduler.running.rows, strict=True
    ):
        known, media = request.known_bytes, request.options.media
        root_key = isolation_key((), request.options)
        for group, pool in enumerate(allocator.pools):
            checked: set[CacheNode] = set()
            for block in scheduler.tables.blocks(group, int(row)):
                node = pool.node_of[block]
                while node is not None and node.depth and node not in checked:
                    start = size * (node.depth - 1)
                    tokens = known[TOKEN_BYTES * start : TOKEN_BYTES * (start + size)]
                    assert node.key == block_key(tokens, start, media), "of other tokens"
                    checked.add(node)
                    node = node.parent
                    assert node is not None, "a cached block below one that left the tree"
                if node is not None and not node.depth:
                    assert node.key == root_key, "of another tenant, adapter or offset"


def _beam_params(sampling: SamplingParams, prompt: tuple[int, ...]) -> BeamParams:
    return BeamParams(
        width=sampling.num_sequences,
        num_return=sampling.n,
        max_tokens=min(sampling.max_tokens, MAX_CONTEXT - len(prompt)),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        stop_token_ids=frozenset(t for t in sampling.stop_token_ids if t < VOCAB_SIZE),
    )
