"""One layer of a decoder: attention, and an MLP or experts."""

from functools import partial

from flax import nnx
from jaxtyping import Array, Float, Int32

from paxkv.models.attend import Attend, Cache, Heads
from paxkv.models.config import ModelConfig
from paxkv.models.experts import Experts
from paxkv.models.lora import TokenAdapters, adapted
from paxkv.models.mla import LatentAttention
from paxkv.models.mlp import mlp
from paxkv.models.norms import make_norm, normed
from paxkv.models.rope import Rotation, rotate


class Layer(nnx.Module):
    """Attention and MLP with their norms and residual additions."""

    def __init__(self, config: ModelConfig, *, has_experts: bool, rngs: nnx.Rngs):
        self.config = config
        hidden, inner = config.hidden_size, config.intermediate_size
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

        def linear(size_in: int, size_out: int, use_bias: bool) -> nnx.Linear:
            return nnx.Linear(size_in, size_out, use_bias=use_bias, rngs=rngs)

        self.attention_norm = make_norm(config, hidden, rngs)
        if config.latent is not None:
            self.latent = LatentAttention(config, rngs=rngs)
        else:
            self.q_proj = linear(hidden, heads * head_dim, config.qkv_bias)
            self.k_proj = linear(hidden, kv_heads * head_dim, config.qkv_bias)
            self.v_proj = linear(hidden, kv_heads * head_dim, config.qkv_bias)
            self.o_proj = linear(heads * head_dim, hidden, config.output_bias)
        self.mlp_norm = make_norm(config, hidden, rngs)
        if has_experts:
            self.experts = Experts(config, rngs=rngs)
        else:
            self.up_proj = linear(hidden, inner, config.mlp_bias)
            self.down_proj = linear(inner, hidden, config.mlp_bias)
            if config.gated_mlp:
                self.gate_proj = linear(hidden, inner, config.mlp_bias)
        self.has_experts = has_experts
        if config.qk_norm:
            self.q_norm = nnx.RMSNorm(head_dim, epsilon=config.norm_eps, rngs=rngs)
            self.k_norm = nnx.RMSNorm(head_dim, epsilon=config.norm_eps, rngs=rngs)
        if config.post_norms:
            self.post_attention_norm = make_norm(config, hidden, rngs)
            self.post_mlp_norm = make_norm(config, hidden, rngs)

    def attention(
        self,
        x: Float[Array, "T hidden"],
        positions: Int32[Array, "T"],
        rotation: Rotation | None,
        attend: Attend,
        *,
        adapters: TokenAdapters | None,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        """Projections, QK norm and RoPE around `attend`; `rotation` None: no RoPE."""
        config = self.config
        q, k, v = (
            adapted(linear, name, adapters)(x).reshape(x.shape[0], -1, config.head_dim)
            for name, linear in (
                ("q_proj", self.q_proj),
                ("k_proj", self.k_proj),
                ("v_proj", self.v_proj),
            )
        )
        if config.qk_norm:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        if rotation is not None:
            q, k = rotate(q, positions, rotation), rotate(k, positions, rotation)
        out, cache = attend(q, Heads(k, v))
        o_proj = adapted(self.o_proj, "o_proj", adapters)
        return o_proj(out.reshape(x.shape[0], -1)), cache

    def mlp(
        self,
        x: Float[Array, "T hidden"],
        index: Int32[Array, ""] | int,
        adapters: TokenAdapters | None,
    ) -> Float[Array, "T hidden"]:
        """One MLP, or experts."""
        if self.has_experts:
            return self.experts(x, index)
        return mlp(
            x,
            self.config.activation,
            gate=adapted(self.gate_proj, "gate_proj", adapters)
            if self.config.gated_mlp
            else None,
            up=adapted(self.up_proj, "up_proj", adapters),
            down=adapted(self.down_proj, "down_proj", adapters),
        )

    def __call__(
        self,
        x: Float[Array, "T hidden"],
        positions: Int32[Array, "T"],
        rotation: Rotation | None,
        index: Int32[Array, ""] | int,
        attend: Attend,
        adapters: TokenAdapters | None,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        """`index` is that of the layer in its stack; `adapters` have its weights only."""
        plain = partial(self.attention, adapters=adapters)
        mix = plain if self.config.latent is None else self.latent
        mixed, cache = mix(normed(self.attention_norm, x), positions, rotation, attend)
        if self.config.post_norms:
            mixed = normed(self.post_attention_norm, mixed)
        x = x + mixed
        fed = self.mlp(normed(self.mlp_norm, x), index, adapters)
        if self.config.post_norms:
            fed = normed(self.post_mlp_norm, fed)
        return x + fed, cache
