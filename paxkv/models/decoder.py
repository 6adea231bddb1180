"""One decoder for every supported family: what differs is a field of `ModelConfig`.

The decoder never touches a cache. Each layer hands its queries, keys and values to
`attend`, which stores K and V and returns the attention output: paged when serving,
dense when training. Layers are stacked and run in one `lax.scan`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from paxkv.models.config import ModelConfig
from paxkv.models.rope import layer_frequencies, rotate

Cache = Any  # a pytree that only `attend` looks into
# (q[T,H,D], k[T,K,D], v[T,K,D], cache, layer i32[], window i32[]) -> (out[T,H,D], cache)
# window == FULL_ATTENTION means unbounded. Inside a layer the last three are bound.
Attend = Callable[..., tuple[Float[Array, "T H D"], Cache]]

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def _norm(config: ModelConfig, size: int, rngs: nnx.Rngs) -> nnx.Module:
    if config.norm == "rms":
        return nnx.RMSNorm(size, epsilon=config.norm_eps, rngs=rngs)
    # the fast variance, E[x^2] - E[x]^2, cancels where the mean is large
    return nnx.LayerNorm(size, epsilon=config.norm_eps, use_fast_variance=False, rngs=rngs)


def _normed(norm: nnx.Module, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Norm weights are float32 whatever the others are; activations keep their dtype."""
    return norm(x).astype(x.dtype)


class Layer(nnx.Module):
    """Attention and MLP with their norms and residual additions."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        hidden, inner = config.hidden_size, config.intermediate_size
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

        def linear(size_in: int, size_out: int, use_bias: bool) -> nnx.Linear:
            return nnx.Linear(size_in, size_out, use_bias=use_bias, rngs=rngs)

        self.attention_norm = _norm(config, hidden, rngs)
        self.q_proj = linear(hidden, heads * head_dim, config.qkv_bias)
        self.k_proj = linear(hidden, kv_heads * head_dim, config.qkv_bias)
        self.v_proj = linear(hidden, kv_heads * head_dim, config.qkv_bias)
        self.o_proj = linear(heads * head_dim, hidden, config.output_bias)
        self.mlp_norm = _norm(config, hidden, rngs)
        self.up_proj = linear(hidden, inner, config.mlp_bias)
        self.down_proj = linear(inner, hidden, config.mlp_bias)
        if config.gated_mlp:
            self.gate_proj = linear(hidden, inner, config.mlp_bias)
        if config.qk_norm:
            self.q_norm = nnx.RMSNorm(head_dim, epsilon=config.norm_eps, rngs=rngs)
            self.k_norm = nnx.RMSNorm(head_dim, epsilon=config.norm_eps, rngs=rngs)
        if config.post_norms:
            self.post_attention_norm = _norm(config, hidden, rngs)
            self.post_mlp_norm = _norm(config, hidden, rngs)

    def attention(
        self,
        x: Float[Array, "T hidden"],
        positions: Int32[Array, "T"],
        frequencies: Float[Array, "half"] | None,
        attend: Attend,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        """Projections, QK norm and RoPE around `attend`; `frequencies` None: no RoPE."""
        config = self.config
        q = self.q_proj(x).reshape(-1, config.num_heads, config.head_dim)
        k = self.k_proj(x).reshape(-1, config.num_kv_heads, config.head_dim)
        v = self.v_proj(x).reshape(-1, config.num_kv_heads, config.head_dim)
        if config.qk_norm:
            q, k = _normed(self.q_norm, q), _normed(self.k_norm, k)
        if frequencies is not None:
            q = rotate(q, positions, frequencies)
            k = rotate(k, positions, frequencies)
        out, cache = attend(q, k, v)
        return self.o_proj(out.reshape(x.shape[0], -1)), cache

    def mlp(self, x: Float[Array, "T hidden"]) -> Float[Array, "T hidden"]:
        """Two products around an activation, gated or not."""
        activation = ACTIVATIONS[self.config.activation]
        up = self.up_proj(x)
        if self.config.gated_mlp:
            return self.down_proj(activation(self.gate_proj(x)) * up)
        return self.down_proj(activation(up))

    def __call__(
        self,
        x: Float[Array, "T hidden"],
        positions: Int32[Array, "T"],
        frequencies: Float[Array, "half"] | None,
        attend: Attend,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        mixed, cache = self.attention(
            _normed(self.attention_norm, x), positions, frequencies, attend
        )
        if self.config.post_norms:
            mixed = _normed(self.post_attention_norm, mixed)
        x = x + mixed
        fed = self.mlp(_normed(self.mlp_norm, x))
        if self.config.post_norms:
            fed = _normed(self.post_mlp_norm, fed)
        return x + fed, cache


class Decoder(nnx.Module):
    """Token ids to hidden states to logits. Parameters of layers are stacked on axis 0."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        hidden = config.hidden_size
        self.embedding = nnx.Embed(config.vocab_size, hidden, rngs=rngs)
        if config.rope is None:
            self.position_embedding = nnx.Embed(config.max_context, hidden, rngs=rngs)
        self.layers = nnx.vmap(
            lambda rngs: Layer(config, rngs=rngs),
            in_axes=0,
            out_axes=0,
            axis_size=config.num_layers,
        )(rngs.split(config.num_layers))
        self.final_norm = _norm(config, hidden, rngs)
        if not config.tied_embeddings:
            self.lm_head = nnx.Linear(hidden, config.vocab_size, use_bias=False, rngs=rngs)

    def embed(
        self, tokens: Int32[Array, "T"], positions: Int32[Array, "T"]
    ) -> Float[Array, "T hidden"]:
        """Scaled token embeddings, plus those of positions where they are a table."""
        # taken from the table itself: nnx.Embed casts to the dtype it was made with
        x = jnp.take(self.embedding.embedding[...], tokens, axis=0)
        # the scale is rounded to the activations' dtype, as the trained models saw it
        x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        if self.config.rope is None:
            table = self.position_embedding.embedding[...]
            x = x + jnp.take(table, positions, axis=0)
        return x

    def __call__(
        self,
        tokens: Int32[Array, "T"],
        positions: Int32[Array, "T"],
        cache: Cache,
        attend: Attend,
    ) -> tuple[Float[Array, "L T hidden"], Cache]:
        """Runs all layers; returns the residual stream after each of them.

        `cache` is carried through `attend`.
        """
        (_, cache), residuals = self._run(tokens, positions, cache, attend, keep=True)
        return residuals, cache

    def last_hidden(
        self,
        tokens: Int32[Array, "T"],
        positions: Int32[Array, "T"],
        cache: Cache,
        attend: Attend,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        """As calling the decoder, but keeps only what `logits` takes."""
        (x, cache), _ = self._run(tokens, positions, cache, attend, keep=False)
        return x, cache

    def _run(
        self, tokens: Array, positions: Array, cache: Cache, attend: Attend, *, keep: bool
    ) -> tuple[tuple[Array, Cache], Any]:
        """Last residual and cache; all residuals [L, T, hidden] too if `keep`."""
        config = self.config
        graph, stacked = nnx.split(self.layers)
        xs = (
            stacked,
            np.arange(config.num_layers, dtype=np.int32),
            np.asarray(config.layer_windows, np.int32),
            layer_frequencies(config),
        )

        def body(carry, x_layer):
            x, cache = carry
            state, index, window, frequencies = x_layer
            layer = nnx.merge(graph, state)
            x, cache = layer(
                x,
                positions,
                frequencies,
                lambda q, k, v: attend(q, k, v, cache, index, window),
            )
            return (x, cache), x if keep else None

        return jax.lax.scan(body, (self.embed(tokens, positions), cache), xs)

    def logits(self, x: Float[Array, "T hidden"]) -> Float[Array, "T V"]:
        """Final norm and output head; float32 whatever the weights' dtype."""
        x = _normed(self.final_norm, x)
        if self.config.tied_embeddings:
            table = self.embedding.embedding[...]
            out = jnp.einsum("th,vh->tv", x, table, preferred_element_type=jnp.float32)
        else:
            out = jnp.dot(x, self.lm_head.kernel[...], preferred_element_type=jnp.float32)
        if self.config.final_soft_cap is not None:
            cap = self.config.final_soft_cap
            out = cap * jnp.tanh(out / cap)
        return out
