"""Attention over parts of the keys, put together by lse, which is exact.

Each part's share of the softmax is exp(lse - lse of all) (Flash-Decoding, Dao et al.
2023). A part without keys has lse = -inf, and then its result may be garbage; a NaN of any
other part must show.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32


def merge_parts(
    out: Float[Array, "parts *rows Dv"], lse: Float32[Array, "parts *rows"]
) -> tuple[Float32[Array, "*rows Dv"], Float32[Array, "*rows"]]:
    """Over disjoint sets of keys, from that over each. All empty: 0 and -inf."""
    total = lse[0] if lse.shape[0] == 1 else jax.nn.logsumexp(lse, axis=0)
    share = jnp.exp(lse - jnp.where(jnp.isneginf(total), 0, total))[..., None]
    is_garbage = jnp.isneginf(lse)[..., None]
    return jnp.where(is_garbage, 0, share * out.astype(jnp.float32)).sum(axis=0), total


def join_sinks(
    out: Float[Array, "T H Dv"],
    lse: Float32[Array, "T H"],
    sinks: Float[Array, "H"] | None,
) -> tuple[Float32[Array, "T H Dv"], Float32[Array, "T H"]]:
    """Adds a logit per head that has no value. Rows that saw no key stay as they are."""
    if sinks is None:
        return out, lse
    is_empty = jnp.isneginf(lse)
    joined = jnp.where(is_empty, lse, jnp.logaddexp(lse, sinks.astype(jnp.float32)))
    share = jnp.exp(jnp.where(is_empty, 0, lse - joined))
    return out * share[..., None], joined
