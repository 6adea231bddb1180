"""From an `EngineConfig` to a running engine: weights, pool, scheduler, executor."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from absl import logging

from pallas_kernels.paged_attention.api import EXPANDING
from paxkv.allocators import make_allocator
from paxkv.cache import CachePlan, plan_cache
from paxkv.config import EngineConfig
from paxkv.device_executor import DeviceExecutor
from paxkv.engine import Engine
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.platform import current_device, resolve_implementation
from paxkv.sampling_table import SamplingTable
from paxkv.scheduler import Scheduler
from paxkv.sequence_tables import SequenceTables
from paxkv.step_inputs import make_buckets

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
) -> tuple[Engine, DeviceExecutor]:
    """Allocates the pool and joins scheduler and executor around one set of tables.

    Args:
      clock: tells seconds.
      tokenizer_eos_ids: end a request as those of the model's own config do.

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
        platform=device.platform,
        free_bytes=device.free_bytes,
    )
    eos_token_ids = sorted({*model.eos_token_ids, *tokenizer_eos_ids})
    scheduler = _build_scheduler(config, model, cache_plan, eos_token_ids)
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
        device_name=device.name,
        implementation=implementation,
        matmul_precision=config.matmul_precision,
        latent_prefill=config.latent_prefill,
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


def _build_scheduler(
    config: EngineConfig,
    model: ModelConfig,
    cache_plan: CachePlan,
    eos_token_ids: Sequence[int],
) -> Scheduler:
    """The tables, the allocator that fills them, and the scheduler over both."""
    max_context = context_limit(config, model.max_context)
    tables = SequenceTables(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_context=max_context,
        blocks_per_sequence=(-(-max_context // config.cache.block_size),)
        * len(cache_plan.layers_per_group),
    )
    allocator = make_allocator(
        config.cache,
        num_blocks=cache_plan.num_blocks,
        tables=tables,
        max_context=max_context,
    )
    return Scheduler(
        config.scheduler,
        allocator,
        tables,
        max_context=max_context,
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        check_invariants=config.check_invariants,
    )
