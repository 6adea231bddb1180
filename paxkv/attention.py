"""Attention through the paged cache: what the serving step gives the decoder."""

from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Array

from pallas_kernels.paged_attention import paged_attention, ragged_paged_attention
from pallas_kernels.write_kv import write_kv
from paxkv.models.attend import Attend, Cache, Heads, Latent
from paxkv.models.cache_groups import windowed_groups
from paxkv.models.config import ModelConfig
from paxkv.step_inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """What attention needs beside arrays; static in the jitted step."""

    scale: float
    soft_cap: float | None
    windowed: tuple[bool, ...]  # per cache group: some layer has a window
    implementation: str
    device_kind: str | None  # the chip, as jax names it; None: tiles fit every chip
    expand_latents: bool  # to K and V of every head, where a step has prefill


def attention_options(
    model: ModelConfig,
    implementation: str,
    *,
    device_kind: str | None = None,
    latent_prefill: str = "absorbed",
) -> AttentionOptions:
    """Those of a model; `implementation` is one that the kernels offer, not `auto`."""
    return AttentionOptions(
        scale=model.attention_scale,
        soft_cap=model.attention_soft_cap,
        windowed=windowed_groups(model),
        implementation=implementation,
        device_kind=device_kind,
        expand_latents=latent_prefill == "expanded",
    )


def paged_attend(inputs: StepInputs, options: AttentionOptions) -> Attend:
    """Writes this step's K and V into their slots, then attends through the tables.

    K and V are always read back from the pool, also those of this step, so that a
    prompt in one chunk and in many sees the same numbers.
    """
    is_decode = inputs.tokens.shape == inputs.context_lens.shape

    def attend(q, kv: Heads | Latent, cache: Cache, layer, window) -> tuple[Any, Cache]:
        group, index = layer
        blocks = write_kv(
            cache[group],
            kv.rows(),
            index,
            inputs.slots[group],
            implementation=options.implementation,
        )
        settings = dict(
            scale=options.scale,
            window=window if options.windowed[group] else None,
            soft_cap=options.soft_cap,
            implementation=options.implementation,
            device_kind=options.device_kind,
        )
        expand = None
        if isinstance(kv, Latent):
            if options.expand_latents and not is_decode:
                expand = kv.expand
            else:
                q = kv.absorb(q)
        table = inputs.block_tables[group]
        if is_decode:
            out: Any = paged_attention(
                q, blocks, index, table, inputs.context_lens, **settings
            )
        else:
            out = ragged_paged_attention(
                q,
                blocks,
                index,
                table,
                inputs.context_lens,
                inputs.query_starts,
                inputs.num_seqs,
                expand=expand,
                **settings,
            )
        if isinstance(kv, Latent) and expand is None:
            out = kv.values(cast(Array, out))
        return out, (*cache[:group], blocks, *cache[group + 1 :])

    return attend
