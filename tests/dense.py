"""Ordinary causal attention over whole sequences: the oracle of the serving path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from paxkv.models.config import FULL_ATTENTION
from paxkv.models.decoder import Decoder


def dense_attend(q, kv, cache, layer, window, *, scale, soft_cap):
    """Attention over all earlier tokens of the same call; `cache` passes through."""
    k, v = kv.expanded()
    size, heads, head_dim = q.shape
    grouped = q.reshape(size, k.shape[1], -1, head_dim)
    logits = jnp.einsum("tkgd,skd->kgts", grouped, k) * scale
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    distance = jnp.arange(size)[:, None] - jnp.arange(size)
    seen = (distance >= 0) & ((window == FULL_ATTENTION) | (distance < window))
    weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)
    out = jnp.einsum("kgts,skd->tkgd", weights, v)
    return out.reshape(size, heads, v.shape[-1]), cache


@functools.partial(jax.jit, static_argnums=0)
def logits_of(graph, params, tokens):
    """[T, V] of a split decoder."""
    decoder = nnx.merge(graph, params)
    attend = functools.partial(
        dense_attend,
        scale=decoder.config.attention_scale,
        soft_cap=decoder.config.attention_soft_cap,
    )
    positions = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    hidden, _ = decoder.last_hidden(tokens, positions, None, attend)
    return decoder.logits(hidden)


def dense_logits(decoder: Decoder, tokens: tuple[int, ...]) -> np.ndarray:
    """float32 [len(tokens), V]; one compiled program per model, padded to its context."""
    padded = np.zeros(decoder.config.max_context, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(logits_of(*nnx.split(decoder), padded))[: len(tokens)]
