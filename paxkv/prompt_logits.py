"""Logits of every position of one prompt, read through a paged pool of any format."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32

from pallas_kernels.kv_blocks import KVBlocks
from paxkv.attention import AttentionOptions, attention_options, paged_attend
from paxkv.cache import plan_cache
from paxkv.config import CacheConfig
from paxkv.models.decoder import Decoder
from paxkv.step_inputs import StepInputs

LENGTH_STEP = 256  # tokens


def prompt_logits(
    decoder: Decoder,
    prompt_ids: tuple[int, ...],
    *,
    kv_dtype: str,
    block_size: int = 16,
    implementation: str,
    platform: str,
) -> Float32[np.ndarray, "T V"]:
    """Runs the prompt as one chunk, so that all its attention reads the pool.

    Raises:
      ValueError: a dtype or an implementation that is not offered.
    """
    num_blocks = -(-_padded(len(prompt_ids)) // block_size)
    plan = plan_cache(
        decoder.config,
        CacheConfig(block_size=block_size, num_blocks=num_blocks + 1, dtype=kv_dtype),
        max_num_seqs=1,
        max_context=_padded(len(prompt_ids)),
        max_new_tokens=_padded(len(prompt_ids)),
        platform=platform,
        free_bytes=2**62,
    )
    graph, params = nnx.split(decoder)
    options = attention_options(decoder.config, implementation)
    inputs = _one_prompt(prompt_ids, num_blocks, block_size, len(plan.layers_per_group))
    logits = _logits(params, plan.allocate(), jax.device_put(inputs), graph, options)
    return np.asarray(logits)[: len(prompt_ids)]


def _padded(num_tokens: int) -> int:
    """So that prompts of similar lengths share a program."""
    return -(-num_tokens // LENGTH_STEP) * LENGTH_STEP


@partial(jax.jit, static_argnames=("graph", "options"))
def _logits(
    params: nnx.State,
    cache: tuple[KVBlocks, ...],
    inputs: StepInputs,
    graph: nnx.GraphDef[Decoder],
    options: AttentionOptions,
) -> Float[Array, "T V"]:
    with jax.default_matmul_precision("highest"):
        decoder = nnx.merge(graph, params)
        attend = paged_attend(inputs, options)
        hidden, _ = decoder.last_hidden(inputs.tokens, inputs.positions, cache, attend)
        return decoder.logits(hidden).astype(jnp.float32)


def _one_prompt(
    prompt_ids: tuple[int, ...], num_blocks: int, block_size: int, num_groups: int
) -> StepInputs:
    """Its blocks are 1 to `num_blocks` of each group. Padding goes to the null block."""
    length = len(prompt_ids)
    positions = np.arange(_padded(length), dtype=np.int32)
    tokens = np.zeros_like(positions)
    tokens[:length] = prompt_ids
    return StepInputs(
        tokens=tokens,
        positions=positions,
        targets=np.zeros(0, np.int32),
        slots=(np.where(positions < length, positions + block_size, 0),) * num_groups,
        block_tables=(np.arange(1, num_blocks + 1, dtype=np.int32)[None],) * num_groups,
        context_lens=np.asarray([length], np.int32),
        query_starts=np.asarray([0, length], np.int32),
        num_seqs=np.ones(1, np.int32),
        last_tokens=np.asarray([length - 1], np.int32),
    )
