"""The one jitted function of serving: write K/V, attend, sample (DESIGN §2)."""

from dataclasses import dataclass
from functools import partial
from typing import cast

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_blocks import KVBlocks
from paxkv.attention import AttentionOptions, paged_attend
from paxkv.models.decoder import Decoder
from paxkv.models.lora import LoraWeights, TokenAdapters
from paxkv.sampling import (
    SampleOutput,
    SamplingFeatures,
    SamplingInputs,
    sample,
    token_logprobs,
)
from paxkv.step_inputs import StepInputs

LOGPROB_CHUNK = 16  # tokens whose logits over the vocabulary are held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Static arguments: each distinct value is a program of its own."""

    attention: AttentionOptions
    features: SamplingFeatures
    prompt_logprobs: int | None  # alternatives per prompt token, None: not asked
    matmul_precision: str


@chex.dataclass(frozen=True)
class StepOutput:
    """`sampled` has one entry per sequence, `prompt` one per token (or none)."""

    sampled: SampleOutput
    prompt: SampleOutput | None


@partial(jax.jit, static_argnames=("graph", "options"), donate_argnames=("cache",))
def step(
    params: nnx.State,
    cache: tuple[KVBlocks, ...],
    inputs: StepInputs,
    sampling: SamplingInputs,
    lora: LoraWeights | None = None,
    *,
    graph: nnx.GraphDef[Decoder],
    options: StepOptions,
) -> tuple[tuple[KVBlocks, ...], StepOutput]:
    """Runs one ragged batch; `cache` is donated and returned with the new K and V.

    `lora` None: no adapters are loaded, and the program has none.
    """
    adapters = (
        None if lora is None else TokenAdapters(lora, cast(Array, inputs.adapter_ids))
    )
    with jax.default_matmul_precision(options.matmul_precision):
        decoder = nnx.merge(graph, params)
        hidden, cache = decoder.last_hidden(
            inputs.tokens,
            inputs.positions,
            cache,
            paged_attend(inputs, options.attention),
            adapters,
        )
        logits = decoder.logits(hidden[inputs.last_tokens])
        output = StepOutput(
            sampled=sample(logits, sampling, options.features),
            prompt=_prompt_logprobs(decoder, hidden, inputs, options.prompt_logprobs),
        )
    return cache, output


def _prompt_logprobs(
    decoder: Decoder,
    hidden: Float[Array, "T hidden"],
    inputs: StepInputs,
    count: int | None,
) -> SampleOutput | None:
    """Of the token after each position, a chunk of positions at a time."""
    if count is None:
        return None

    def of_chunk(chunk: tuple[Float[Array, "C hidden"], Int32[Array, "C"]]):
        chunk_hidden, targets = chunk
        return token_logprobs(decoder.logits(chunk_hidden), targets, count)

    num_tokens, size = hidden.shape
    padding = -num_tokens % LOGPROB_CHUNK
    chunks = jax.lax.map(
        of_chunk,
        (
            jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, LOGPROB_CHUNK, size),
            jnp.pad(inputs.targets, (0, padding)).reshape(-1, LOGPROB_CHUNK),
        ),
    )
    return jax.tree.map(
        lambda x: x.reshape(num_tokens + padding, *x.shape[2:])[:num_tokens], chunks
    )
