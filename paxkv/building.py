"""From an `EngineConfig` to a running engine: weights, pool, scheduler, executor."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from absl import logging
from flax import nnx

from pallas_kernels.paged_attention.api import EXPANDING
from paxkv.adapters import AdapterSet
from paxkv.cache import CachePlan, plan_cache
from paxkv.cache_keys import Part
from paxkv.config import EngineConfig
from paxkv.device_executor import DeviceExecutor
from paxkv.engine import Engine
from paxkv.events import Listener
from paxkv.models.cache_groups import group_windows
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.platform import current_device, resolve_implementation
from paxkv.sampling_table import SamplingTable
from paxkv.scheduler_building import build_scheduler
from paxkv.step_inputs import make_buckets
from paxkv.tiers.disk_store import DiskStore
from paxkv.tiers.host_store import HostStore
from paxkv.transfers import Transfers

COMPILATION_CACHE_DIR = "~/.cache/paxkv/jax"


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, unless jax was told where to keep them."""
    if jax.config.jax_compilation_cache_dir is None:
        directory = Path(COMPILATION_CACHE_DIR).expanduser()
        jax.config.update("jax_compilation_cache_dir", os.fspath(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def context_limit(config: EngineConfig, model_max_context: int) -> int:
    """The longest sequence in tokens: the model's own limit, or a lower one asked for."""
    if config.max_context is None:
        return model_max_context
    if config.max_context > model_max_context:
        raise ValueError(
            f"max_context={config.max_context} exceeds the model's {model_max_context} "
            "tokens; lower it (engine.max_context in a config, max_model_len of LLM)."
        )
    return config.max_context


def build_engine(
    config: EngineConfig,
    decoder: Decoder,
    *,
    clock: Callable[[], float] = time.monotonic,
    tokenizer_eos_ids: Sequence[int] = (),
    adapters: AdapterSet | None = None,
    listener: Listener | None = None,
) -> tuple[Engine, DeviceExecutor]:
    """Allocates the pool and joins scheduler and executor around one set of tables.

    Args:
      clock: tells seconds.
      tokenizer_eos_ids: end a request as those of the model's own config do.
      adapters: that requests may name; None: none.
      listener: hears of every event of blocks and requests, such as an `EventLog`.

    Raises:
      ValueError: a limit of the config, the model or the device is violated.
    """
    use_compilation_cache()
    model, device = decoder.config, current_device()
    implementation = resolve_implementation(config.implementation, device.platform)
    if config.latent_prefill == "expanded" and model.latent is None:
        raise ValueError(
            f"latent_prefill='expanded' needs latent attention, {model.family=} has none; "
            "use 'absorbed'."
        )
    if config.latent_prefill == "expanded" and implementation not in EXPANDING:
        raise ValueError(
            f"latent_prefill='expanded' is not offered by {implementation=}; use one of "
            f"{EXPANDING}, or latent_prefill='absorbed'."
        )
    cache_plan = plan_cache(
        model,
        config.cache,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_context=context_limit(config, model.max_context),
        max_new_tokens=config.scheduler.max_num_batched_tokens,
        platform=device.platform,
        free_bytes=device.free_bytes,
    )
    eos_token_ids = sorted({*model.eos_token_ids, *tokenizer_eos_ids})
    host_store, disk_store = _open_stores(config, decoder, cache_plan)
    scheduler = build_scheduler(
        config.cache,
        config.scheduler,
        num_blocks=cache_plan.blocks_per_group,
        windows=group_windows(model),
        max_context=context_limit(config, model.max_context),
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        check_invariants=config.check_invariants,
        model_key=_model_key(config, model),
        disk=disk_store,
        host_store=host_store,
        adapters=() if adapters is None else adapters.adapters,
        listener=listener,
    )
    executor = DeviceExecutor(
        decoder,
        cache_plan,
        SamplingTable(
            max_num_seqs=config.scheduler.max_num_seqs,
            vocab_size=model.vocab_size,
            engine_seed=config.seed,
            eos_token_ids=eos_token_ids,
        ),
        make_buckets(
            config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
        ),
        Transfers(
            implementation,
            host_store,
            disk_store,
            delay_steps=config.cache.delay_steps,
        ),
        device_name=device.name,
        implementation=implementation,
        matmul_precision=config.matmul_precision,
        latent_prefill=config.latent_prefill,
        adapters=adapters,
    )
    logging.info(
        "engine on %s: %s attention, %s products, pool of %d blocks x %d tokens",
        device.name,
        implementation,
        config.matmul_precision,
        cache_plan.num_blocks,
        cache_plan.block_size,
    )
    return Engine(scheduler, executor, clock), executor


def _model_key(config: EngineConfig, model: ModelConfig) -> tuple[Part, ...]:
    """What K/V depends on in the whole engine: weights, positions, dtypes."""
    return (
        ("model", config.model, config.model_revision),
        ("positions", repr(model.rope), repr(model.local_rope)),
        ("dtype", config.cache.dtype),
    )


def weights_digest(decoder: Decoder) -> bytes:
    """SHA-256 of all weights, with their names, shapes and dtypes."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(nnx.state(decoder)):
        values = np.asarray(jax.device_get(leaf))
        digest.update(
            f"{jax.tree_util.keystr(path)} {values.shape} {values.dtype}".encode()
        )
        digest.update(values.tobytes())
    return digest.digest()


def _open_stores(
    config: EngineConfig, decoder: Decoder, cache_plan: CachePlan
) -> tuple[HostStore | None, DiskStore | None]:
    """The host's memory and the folder that the config asks for."""
    cache = config.cache
    if not cache.host_blocks:
        return None, None
    host = HostStore(
        cache.host_blocks, cache_plan.group_bytes_per_block, checksums=cache.checksums
    )
    if cache.disk_folder is None:
        return host, None
    # weights by what they are, since a path may hold others tomorrow
    meaning = (
        weights_digest(decoder),
        decoder.config,
        config.matmul_precision,
        cache_plan.layout,
        cache.block_size,
    )
    identity = repr(meaning)
    disk = DiskStore(
        cache.disk_folder,
        max_bytes=cache.disk_bytes,
        identity=hashlib.sha256(identity.encode()).digest(),
        checksums=cache.checksums,
    )
    return host, disk
