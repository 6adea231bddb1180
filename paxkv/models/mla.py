"""Multi-head latent attention (DeepSeek-V2, 2024, §2.1): its projections."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int32

from paxkv.models.attend import Attend, Cache, Latent
from paxkv.models.config import ModelConfig
from paxkv.models.norms import normed
from paxkv.models.rope import Rotation, rotate

LATENT_NORM_EPS = 1e-6  # of the trained models, whatever their other norms have


class LatentAttention(nnx.Module):
    """From hidden states to queries and one cache row per token, and back."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        assert config.latent is not None
        self.config = config
        self.sizes = sizes = config.latent
        hidden, heads = config.hidden_size, config.num_heads

        def linear(size_in: int, size_out: int, use_bias: bool = False) -> nnx.Linear:
            return nnx.Linear(size_in, size_out, use_bias=use_bias, rngs=rngs)

        def norm(size: int) -> nnx.RMSNorm:
            return nnx.RMSNorm(size, epsilon=LATENT_NORM_EPS, rngs=rngs)

        query_size = heads * (sizes.nope_dim + sizes.rope_dim)
        if sizes.query_rank is None:
            self.q_proj = linear(hidden, query_size)
        else:
            self.q_down_proj = linear(hidden, sizes.query_rank, config.qkv_bias)
            self.q_norm = norm(sizes.query_rank)
            self.q_up_proj = linear(sizes.query_rank, query_size)
        self.kv_down_proj = linear(hidden, config.head_dim, config.qkv_bias)
        self.kv_norm = norm(sizes.kv_rank)
        self.k_up_proj = linear(sizes.kv_rank, heads * sizes.nope_dim)
        self.v_up_proj = linear(sizes.kv_rank, heads * sizes.value_dim)
        self.o_proj = linear(heads * sizes.value_dim, hidden, config.output_bias)

    def __call__(
        self,
        x: Float[Array, "T hidden"],
        positions: Int32[Array, "T"],
        rotation: Rotation | None,
        attend: Attend,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        """Only the row's latent is normed, and only the last part of q and row turns."""
        assert rotation is not None, "ModelConfig asks for RoPE"
        heads, rank = self.config.num_heads, self.sizes.kv_rank
        q = self._queries(x).reshape(x.shape[0], heads, -1)
        plain, turning = jnp.split(q, [self.sizes.nope_dim], axis=-1)
        q = jnp.concatenate([plain, rotate(turning, positions, rotation)], axis=-1)
        latent, turning = jnp.split(self.kv_down_proj(x), [rank], axis=-1)
        turned = rotate(turning[:, None], positions, rotation)[:, 0]
        rows = Latent(
            row=jnp.concatenate([normed(self.kv_norm, latent), turned], axis=-1),
            up_k=self.k_up_proj.kernel[...].reshape(rank, heads, -1),
            up_v=self.v_up_proj.kernel[...].reshape(rank, heads, -1),
        )
        out, cache = attend(q, rows)
        return self.o_proj(out.reshape(x.shape[0], -1)), cache

    def _queries(self, x: Float[Array, "T hidden"]) -> Float[Array, "T size"]:
        if self.sizes.query_rank is None:
            return self.q_proj(x)
        return self.q_up_proj(normed(self.q_norm, self.q_down_proj(x)))
