"""Swap and tiers with a real model: bytes really move, in every format of the pool."""

from pathlib import Path

import numpy as np
import pytest

from paxkv.building import build_engine
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.device_executor import DeviceExecutor
from paxkv.engine import Engine
from paxkv.models.decoder import Decoder
from paxkv.sampling_params import SamplingParams
from tests.paxkv.models.hf_fixtures import decoder_of
from tests.tiny_model import tiny_decoder

BLOCK_SIZE = 4
COMMON = tuple(np.random.default_rng(3).integers(0, 60, 24).tolist())


def engine_of(
    decoder: Decoder, *, dtype: str = "float32", **settings
) -> tuple[Engine, DeviceExecutor]:
    in_cache = CacheConfig.__dataclass_fields__
    cache = {key: value for key, value in settings.items() if key in in_cache}
    scheduler = {key: value for key, value in settings.items() if key not in in_cache}
    config = EngineConfig(
        model="tiny",
        implementation="xla",
        max_context=64,
        check_invariants=True,
        cache=CacheConfig(
            **{"block_size": BLOCK_SIZE, "num_blocks": 80, "dtype": dtype} | cache
        ),
        scheduler=SchedulerConfig(
            **{"max_num_seqs": 4, "max_num_batched_tokens": 32} | scheduler
        ),
    )
    return build_engine(config, decoder)


def serve(engine: Engine, *prompts: tuple[int, ...], **sampling) -> list[list[int]]:
    settings = SamplingParams(
        **{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True} | sampling
    )
    ids = [engine.add(prompt, settings) for prompt in prompts]
    tokens: dict[int, list[int]] = {request_id: [] for request_id in ids}
    while engine.has_unfinished:
        for update in engine.step().updates:
            tokens[update.request_id] += update.new_token_ids
    return [tokens[request_id] for request_id in ids]


def prompts(count: int = 4) -> list[tuple[int, ...]]:
    """That share a prefix of 24 tokens; the last one ends inside a block."""
    rng = np.random.default_rng(4)
    return [(*COMMON, *rng.integers(0, 60, 3 + i).tolist()) for i in range(count)]


@pytest.mark.parametrize("model", ["plain", "deepseek_v2_lite"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
def test_every_format_is_swapped_shared_and_copied(model, dtype):
    """The pool's bytes come back as they were, scales and latents among them."""
    decoder = tiny_decoder() if model == "plain" else decoder_of(model)
    plain, _ = engine_of(decoder, dtype=dtype)
    expected = serve(plain, *prompts())
    engine, executor = engine_of(
        decoder,
        dtype=dtype,
        pressure="preempt_swap",
        preempt_every=2,
        host_blocks=64,
        prefix_caching=True,
        granularity="token",
        shuffle_seed=1,
    )
    assert serve(engine, *prompts()) == expected
    counts, plan = executor.transfers.counts, executor.cache_plan
    assert counts.swapped_out_blocks >= counts.swapped_in_blocks > 0
    assert counts.swapped_out_bytes == counts.swapped_out_blocks * plan.bytes_per_block
    assert counts.swapped_in_bytes == counts.swapped_in_blocks * plan.bytes_per_block
    # the second began before the first had computed its blocks
    assert engine.scheduler.admitting.num_hit_tokens == 2 * len(COMMON)


def test_a_block_overwritten_on_the_host_changes_the_tokens():
    """With checksums off: the bytes on the host are those that are computed with."""
    settings = dict(
        pressure="preempt_swap", preempt_every=3, host_blocks=64, checksums=False
    )
    decoder = tiny_decoder()
    expected = serve(engine_of(decoder)[0], *prompts())
    engine, executor = engine_of(decoder, **settings)
    host = executor.transfers.host_store
    assert host is not None
    write = host.write

    def spoil(group, host_slots, payload):
        write(group, host_slots, np.zeros_like(payload))

    host.write = spoil
    assert serve(engine, *prompts()) != expected


def evicted_to_disk(
    folder: Path, **settings
) -> tuple[Engine, DeviceExecutor, list[list[int]]]:
    """A pool and a host so small that what one prompt leaves goes to disk for the next."""
    engine, executor = engine_of(
        tiny_decoder(),
        num_blocks=12,
        host_blocks=2,
        disk_folder=str(folder),
        prefix_caching=True,
        **settings,
    )
    rng = np.random.default_rng(9)
    first = tuple(rng.integers(0, 60, 33).tolist())
    others = [tuple(rng.integers(0, 60, 33).tolist()) for _ in range(2)]
    tokens = serve(engine, first)
    serve(engine, *others)
    return engine, executor, [list(first), *tokens]


def test_blocks_come_back_from_disk(tmp_path):
    engine, executor, (first, tokens) = evicted_to_disk(tmp_path)
    before = engine.scheduler.admitting.num_hit_tokens
    assert serve(engine, tuple(first)) == [tokens]
    assert engine.scheduler.admitting.num_hit_tokens > before
    assert executor.transfers.counts.loaded_blocks > 0
    executor.transfers.disk_store.close()


@pytest.mark.parametrize("num_flipped", [1, 3])
def test_flipped_bytes_on_disk_discard_exactly_those_blocks(tmp_path, num_flipped):
    whole, executor, (first, tokens) = evicted_to_disk(tmp_path / "whole")
    serve(whole, tuple(first))
    hits = whole.scheduler.admitting.num_hit_tokens
    executor.transfers.disk_store.close()

    engine, executor, _ = evicted_to_disk(tmp_path / "flipped")
    store = executor.transfers.disk_store
    prefixes = engine.scheduler.allocator.prefixes
    hit = prefixes.find(_request(first))
    assert len(hit.disk) >= num_flipped
    spoilt = hit.disk[len(hit.disk) - num_flipped :]  # the last, so that the others count
    for block in spoilt:
        (path,) = [p for p in _files(tmp_path / "flipped") if block.digest.hex() in p.name]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert serve(engine, tuple(first)) == [tokens]
    found = engine.scheduler.admitting.num_hit_tokens
    assert hits - found == num_flipped * BLOCK_SIZE
    assert store.num_corrupt >= 1
    store.close()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _request(tokens):
    from paxkv.cache_keys import token_bytes
    from paxkv.types import Request

    return Request(
        request_id=10_000,
        prompt_ids=tuple(tokens),
        sampling=SamplingParams(),
        arrival_s=0.0,
        prompt_bytes=token_bytes(tokens),
    )
