"""What a layer and `attend` tell each other: how a token's K and V come to be.

`attend` stores the rows of this step's tokens and returns what each query head reads
from those of its sequence: paged when serving, dense when training. How heads come by K
and V from rows is the layer's knowledge, carried by `Heads` or `Latent`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

Cache = Any  # a pytree that only `attend` looks into


class Heads(NamedTuple):
    """K and V of every kv head; head h of H queries reads kv head h // (H / K)."""

    k: Float[Array, "T K D"]
    v: Float[Array, "T K D"]

    def rows(self) -> Float[Array, "T R D"]:
        """What a pool stores: K of head 0, V of head 0, K of head 1, and so on."""
        num_tokens, kv_heads, head_dim = self.k.shape
        rows = jnp.stack([self.k, self.v], axis=2)
        return rows.reshape(num_tokens, 2 * kv_heads, head_dim)

    def expanded(self) -> "Heads":
        """Itself; `Latent` has more to do."""
        return self


class Latent(NamedTuple):
    """One row per token, from which every query head makes its own K and V."""

    row: Float[Array, "T D"]  # a latent of `rank` numbers, then the rotated part of K
    up_k: Float[Array, "rank H nope"]
    up_v: Float[Array, "rank H Dv"]

    def rows(self) -> Float[Array, "T R D"]:
        return self.row[:, None, :]

    def expand(
        self, rows: Float[Array, "C D"]
    ) -> tuple[Float[Array, "C H Dk"], Float[Array, "C H Dv"]]:
        """K and V of every head from any tokens' rows, in the rows' dtype."""
        latent, rotated = jnp.split(rows, [self.up_k.shape[0]], axis=-1)
        up_k, up_v = self.up_k.astype(rows.dtype), self.up_v.astype(rows.dtype)
        plain = jnp.einsum("cr,rhn->chn", latent, up_k)
        rotated = jnp.broadcast_to(rotated[:, None], (*plain.shape[:2], rotated.shape[-1]))
        k = jnp.concatenate([plain, rotated], axis=-1)
        return k, jnp.einsum("cr,rhv->chv", latent, up_v)

    def expanded(self) -> Heads:
        return Heads(*self.expand(self.row))

    def absorb(self, q: Float[Array, "T H Dk"]) -> Float[Array, "T H D"]:
        """Queries that a row itself is the key of: q·K of the head == this · row."""
        plain, rotated = jnp.split(q, [self.up_k.shape[-1]], axis=-1)
        plain = jnp.einsum("thn,rhn->thr", plain, self.up_k)
        return jnp.concatenate([plain, rotated], axis=-1)

    def values(self, out: Float[Array, "T H rank"]) -> Float[Array, "T H Dv"]:
        """From averages of latents, which is what absorbed queries read, those of V."""
        return jnp.einsum("thr,rhv->thv", out, self.up_v)


# (q[T,H,Dk], Heads or Latent, cache, CacheLayer, window i32[]) -> (out[T,H,Dv], cache)
# window == FULL_ATTENTION means unbounded. Inside a layer the last three are bound.
Attend = Callable[..., tuple[Float[Array, "T H Dv"], Cache]]
