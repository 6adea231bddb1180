"""Choosing the next token on the device: pure, jittable, independent of batch mates.

Order, as in vLLM: logit bias, banned tokens, penalties, temperature, min-p, top-k,
top-p, draw. Log-probabilities are of the model's own distribution, before all of it.
A row's result depends on its own logits, settings, seed and position only.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int32, UInt32

from paxkv.truncation import truncate

PRNG = "threefry2x32"

# Filled by numpy on the host, then put on the device; a checker of types cannot tell when.
if TYPE_CHECKING:
    HostOrDevice = Any
else:
    HostOrDevice = Array | np.ndarray


@chex.dataclass(frozen=True)
class SamplingInputs:
    """What `sample` needs per row. Lists of ids are padded with V, which is ignored."""

    temperature: Float32[HostOrDevice, "S"]  # 0: greedy
    top_k: Int32[HostOrDevice, "S"]  # V: off
    top_p: Float32[HostOrDevice, "S"]
    min_p: Float32[HostOrDevice, "S"]
    repetition_penalty: Float32[HostOrDevice, "S"]
    presence_penalty: Float32[HostOrDevice, "S"]
    frequency_penalty: Float32[HostOrDevice, "S"]
    seeds: UInt32[HostOrDevice, "S two"]  # high and low half of 64 bits
    sample_indices: Int32[HostOrDevice, "S"]  # of the request's samples
    positions: Int32[HostOrDevice, "S"]  # absolute, of the new token
    bias_ids: Int32[HostOrDevice, "S bias"]
    bias_values: Float32[HostOrDevice, "S bias"]
    banned_ids: Int32[HostOrDevice, "S banned"]
    history: Int32[HostOrDevice, "S M"]  # prompt and output tokens, if penalties are on
    num_prompt: Int32[HostOrDevice, "S"]  # tokens of `history` that are prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFeatures:
    """What any row of the batch asks for; static, so the rest costs nothing."""

    random: bool = False
    truncation: bool = False  # top-k, top-p or min-p; implies `random`
    penalties: bool = False
    bias: bool = False  # logit bias or banned tokens
    logprobs: int | None = None  # alternatives per token; 0: the chosen only


@chex.dataclass(frozen=True)
class SampleOutput:
    """Tokens and their log-probabilities: A rows of n, or 0 of 0 if not asked for.

    `ranks` count from 1, the most likely; equal logits rank by id.
    """

    tokens: Int32[Array, "S"]
    logprobs: Float32[Array, "A"]
    ranks: Int32[Array, "A"]
    top_ids: Int32[Array, "A n"]
    top_logprobs: Float32[Array, "A n"]


def sample(
    logits: Float32[Array, "S V"], inputs: SamplingInputs, features: SamplingFeatures
) -> SampleOutput:
    """Draws one token per row; greedy and random rows mix. Ties go to the lowest id."""
    tokens = jnp.argmax(scores(logits, inputs, features), axis=-1).astype(jnp.int32)
    if features.logprobs is not None:
        return token_logprobs(logits, tokens, features.logprobs)
    empty = jnp.zeros((0, 0))
    return SampleOutput(
        tokens=tokens,
        logprobs=jnp.zeros(0),
        ranks=jnp.zeros(0, jnp.int32),
        top_ids=empty.astype(jnp.int32),
        top_logprobs=empty,
    )


def scores(
    logits: Float32[Array, "S V"], inputs: SamplingInputs, features: SamplingFeatures
) -> Float32[Array, "S V"]:
    """The numbers whose argmax is the token: in random rows, Gumbel-perturbed logits.

    The gap between the largest two says how far a choice is from flipping.
    """
    if features.bias:
        logits = _bias_and_ban(logits, inputs)
    if features.penalties:
        logits = _penalise(logits, inputs)
    if not features.random:
        return logits
    is_random = inputs.temperature[:, None] > 0
    # the largest becomes exactly 0, so that no temperature overflows it
    scaled = logits - logits.max(axis=-1, keepdims=True)
    scaled = scaled / jnp.where(is_random, inputs.temperature[:, None], 1.0)
    if features.truncation:
        limits = inputs.top_k, inputs.top_p, inputs.min_p
        scaled = truncate(scaled, *map(jnp.asarray, limits))
    noise = gumbel_noise(
        inputs.seeds, inputs.sample_indices, inputs.positions, logits.shape[-1]
    )
    return jnp.where(is_random, scaled + noise, logits)


def gumbel_noise(
    seeds: UInt32[HostOrDevice, "S two"],
    sample_indices: Int32[HostOrDevice, "S"],
    positions: Int32[HostOrDevice, "S"],
    vocab_size: int,
) -> Float32[Array, "S V"]:
    """Standard Gumbel noise under key fold_in(fold_in(seed, sample index), position).

    Made from 32 random bits here, not by `jax.random.gumbel`, whose method is an option
    of JAX: all supported versions draw the same. Large values, which decide, come from
    small uniform numbers, where float32 is finest.
    """

    def row_bits(
        seed: UInt32[Array, "two"], index: Int32[Array, ""], position: Int32[Array, ""]
    ) -> Array:
        key = jax.random.wrap_key_data(seed, impl=PRNG)
        key = jax.random.fold_in(jax.random.fold_in(key, index), position)
        return jax.random.bits(key, (vocab_size,), jnp.uint32)

    with jax.threefry_partitionable(True):
        bits = jax.vmap(row_bits)(*map(jnp.asarray, (seeds, sample_indices, positions)))
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    uniform = jnp.minimum(uniform, 1 - 2.0**-24)  # rounding may give 1, hence -inf
    return -jnp.log(-jnp.log1p(-uniform))


def token_logprobs(
    logits: Float32[Array, "T V"], targets: Int32[Array, "T"], num_top: int
) -> SampleOutput:
    """Log-probabilities, ranks and `min(num_top, V)` alternatives of given tokens."""
    vocab_size = logits.shape[-1]
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)
    lower_id = jnp.arange(vocab_size) < targets[:, None]
    is_ahead = (logits > chosen) | ((logits == chosen) & lower_id)
    top_logits, top_ids = lax.top_k(logits, min(num_top, vocab_size))
    return SampleOutput(
        tokens=targets,
        logprobs=chosen[:, 0] - normaliser,
        ranks=1 + is_ahead.sum(axis=-1, dtype=jnp.int32),
        top_ids=top_ids.astype(jnp.int32),
        top_logprobs=top_logits - normaliser[:, None],
    )


def _bias_and_ban(
    logits: Float32[Array, "S V"], inputs: SamplingInputs
) -> Float32[Array, "S V"]:
    rows = jnp.arange(logits.shape[0])[:, None]
    logits = logits.at[rows, inputs.bias_ids].add(inputs.bias_values, mode="drop")
    return logits.at[rows, inputs.banned_ids].set(-jnp.inf, mode="drop")


def _penalise(
    logits: Float32[Array, "S V"], inputs: SamplingInputs
) -> Float32[Array, "S V"]:
    """CTRL's repetition penalty over all known tokens, then OpenAI's over the output."""
    rows = jnp.arange(logits.shape[0])[:, None]
    is_output = jnp.arange(inputs.history.shape[1]) >= inputs.num_prompt[:, None]
    seen = jnp.zeros(logits.shape, bool)
    seen = seen.at[rows, inputs.history].set(True, mode="drop")
    counts = jnp.zeros(logits.shape)
    counts = counts.at[rows, inputs.history].add(is_output.astype(jnp.float32), mode="drop")
    repetition = inputs.repetition_penalty[:, None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(seen, repeated, logits)
    logits -= inputs.frequency_penalty[:, None] * counts
    return logits - inputs.presence_penalty[:, None] * (counts > 0)
