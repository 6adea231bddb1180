"""Attention through the paged cache: what the serving step gives the decoder."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from pallas_kernels.paged_attention import paged_attention, ragged_paged_attention
from pallas_kernels.write_kv import write_kv
from paxkv.models.config import FULL_ATTENTION, ModelConfig
from paxkv.models.decoder import Attend, Cache
from paxkv.step_inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """What attention needs beside arrays; static in the jitted step."""

    scale: float
    soft_cap: float | None
    windowed: bool  # some layer has a window
    implementation: str


def attention_options(model: ModelConfig, implementation: str) -> AttentionOptions:
    """Those of a model; `implementation` is one that the kernels offer, not `auto`."""
    return AttentionOptions(
        scale=model.attention_scale,
        soft_cap=model.attention_soft_cap,
        windowed=any(window != FULL_ATTENTION for window in model.layer_windows),
        implementation=implementation,
    )


def paged_attend(inputs: StepInputs, options: AttentionOptions) -> Attend:
    """Writes this step's K and V into their slots, then attends through the tables.

    K and V are always read back from the pool, also those of this step, so that a
    prompt in one chunk and in many sees the same numbers.
    """
    is_decode = inputs.tokens.shape == inputs.context_lens.shape

    def attend(q, k, v, cache: Cache, layer, window) -> tuple[Any, Cache]:
        (blocks,) = cache
        rows = jnp.stack([k, v], axis=2)  # [T, K, 2, D]: K and V of a head side by side
        rows = rows.reshape(k.shape[0], 2 * k.shape[1], k.shape[2])
        blocks = write_kv(
            blocks, rows, layer, inputs.slots[0], implementation=options.implementation
        )
        settings = dict(
            scale=options.scale,
            window=window if options.windowed else None,
            soft_cap=options.soft_cap,
            implementation=options.implementation,
        )
        table = inputs.block_tables[0]
        if is_decode:
            out = paged_attention(q, blocks, layer, table, inputs.context_lens, **settings)
        else:
            out = ragged_paged_attention(
                q,
                blocks,
                layer,
                table,
                inputs.context_lens,
                inputs.query_starts,
                inputs.num_seqs,
                **settings,
            )
        return out, (blocks,)

    return attend
