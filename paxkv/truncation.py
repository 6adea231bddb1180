"""Leaving only the likely tokens: min-p, top-k and top-p over one shared ordering."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

HEAD = 1024  # likeliest tokens looked at first; all are sorted only if that is too few


class Cut(NamedTuple):
    """The last token kept, in descending order with equal values by ascending id."""

    value: Float32[Array, "S"]
    token_id: Int32[Array, "S"]


def truncate(
    scaled: Float32[Array, "S V"],
    top_k: Int32[Array, "S"],
    top_p: Float32[Array, "S"],
    min_p: Float32[Array, "S"],
) -> Float32[Array, "S V"]:
    """Sets all but the kept tokens to -inf. The largest value of a row must be 0.

    min-p keeps tokens of at least `min_p` times the largest probability; top-k the k
    largest of these (equal ones by id); top-p the fewest whose share of what is left
    reaches p, the one that crosses it included. The largest always stays.
    """
    vocab_size = scaled.shape[-1]
    scaled = jnp.where(scaled >= jnp.log(min_p)[:, None], scaled, -jnp.inf)
    total = jnp.exp(scaled).sum(axis=-1)
    head, head_ids = lax.top_k(scaled, min(HEAD, vocab_size))
    head_cut, is_found = _cut(head, head_ids, top_k, top_p, total, vocab_size)

    def of_all() -> Cut:
        ordered, ids = lax.top_k(scaled, vocab_size)
        full, _ = _cut(ordered, ids, top_k, top_p, total, vocab_size)
        # rows that the head settled keep its result: no row depends on its mates
        return Cut(
            *(jnp.where(is_found, a, b) for a, b in zip(head_cut, full, strict=True))
        )

    cut = head_cut
    if vocab_size > HEAD:
        cut = lax.cond(is_found.all(), lambda: head_cut, of_all)
    value, token_id = cut.value[:, None], cut.token_id[:, None]
    is_tie = (scaled == value) & (jnp.arange(vocab_size) <= token_id)
    return jnp.where((scaled > value) | is_tie, scaled, -jnp.inf)


def _cut(
    ordered: Float32[Array, "S C"],
    ids: Int32[Array, "S C"],
    top_k: Int32[Array, "S"],
    top_p: Float32[Array, "S"],
    total: Float32[Array, "S"],
    vocab_size: int,
) -> tuple[Cut, Bool[Array, "S"]]:
    """The cut from the C likeliest tokens, and whether these were enough to find it.

    Args:
      total: sum of exp over the whole row.
    """
    count = ordered.shape[-1]
    has_k, has_p = top_k < vocab_size, top_p < 1
    in_k = jnp.arange(count) < top_k[:, None]
    weights = jnp.where(in_k, jnp.exp(ordered), 0.0)
    up_to = jnp.cumsum(weights, axis=-1)
    total = jnp.where(has_k, up_to[:, -1], total)
    target = (top_p * total)[:, None]
    is_kept = in_k & ((up_to - weights < target) | ~has_p[:, None])
    last = jnp.maximum(is_kept.sum(axis=-1, keepdims=True) - 1, 0)
    value = jnp.take_along_axis(ordered, last, axis=-1)[:, 0]
    token_id = jnp.take_along_axis(ids, last, axis=-1)[:, 0]
    keeps_all = ~has_k & ~has_p
    reaches = has_p & ~has_k & (up_to[:, -1] >= target[:, 0])
    is_found = keeps_all | (top_k <= count) | reaches
    cut = Cut(
        value=jnp.where(keeps_all, -jnp.inf, value),
        token_id=jnp.where(keeps_all, vocab_size, token_id).astype(jnp.int32),
    )
    return cut, is_found
