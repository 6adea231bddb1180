"""Low-rank adapters (LoRA, arXiv:2106.09685), many of them in one batch.

An adapter adds x A B to a linear map of a layer. As in S-LoRA (arXiv:2311.03285) the base
product is shared and each token chooses an adapter by its id. The A of all adapters stand
side by side, so that one product serves them all; what a token gets from adapters that
are not its own is set to zero before one product with their B. A token's numbers then
follow from its own row alone, whatever adapters the rest of the batch uses.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from paxkv.models.config import ModelConfig
from paxkv.models.mlp import Map

NO_ADAPTER = 0  # id of a token that uses the base model


class LoraPair(NamedTuple):
    """A and B of all adapters for one projection; L layers where they are stacked.

    The columns of A, and rows of B, above an adapter's own rank are zero.
    """

    a: Float[Array, "*L in adapters rank"]
    b: Float[Array, "*L adapters rank out"]  # times the adapter's scale


LoraWeights = dict[str, LoraPair]  # by projection; those without adapters are absent


class TokenAdapters(NamedTuple):
    """The weights of all adapters, and which of them each token uses."""

    weights: LoraWeights
    ids: Int32[Array, "T"]  # NO_ADAPTER, or i + 1 for adapter i


def adapted_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(in, out) of every projection of a layer that an adapter may change.

    Raises:
      ValueError: the model has latent attention or experts.
    """
    for part in ("latent", "experts"):
        if getattr(config, part) is not None:
            name = {"latent": "latent attention", "experts": "experts"}[part]
            raise ValueError(
                f"adapters change plain attention and one MLP per layer; this model "
                f"(family={config.family!r}) has {name}. Serve it without adapters, or "
                "with the adapter merged into its weights."
            )
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    shapes = {
        "q_proj": (hidden, q_size),
        "k_proj": (hidden, kv_size),
        "v_proj": (hidden, kv_size),
        "o_proj": (q_size, hidden),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    return shapes | ({"gate_proj": (hidden, inner)} if config.gated_mlp else {})


def adapted(linear: Map, name: str, adapters: TokenAdapters | None) -> Map:
    """`linear` with what each token's adapter adds to the projection `name`."""
    if adapters is None or name not in adapters.weights:
        return linear
    pair, ids = adapters.weights[name], adapters.ids

    def apply(x: Float[Array, "T in"]) -> Float[Array, "T out"]:
        y = linear(x)
        return y + low_rank(x, pair, ids).astype(y.dtype)

    return apply


def low_rank(
    x: Float[Array, "T in"], pair: LoraPair, ids: Int32[Array, "T"]
) -> Float[Array, "T out"]:
    """x A B of each token's own adapter, zero for NO_ADAPTER; float32."""
    inner = jnp.einsum("ti,iar->tar", x, pair.a, preferred_element_type=jnp.float32)
    own = ids[:, None] == 1 + jnp.arange(pair.a.shape[-2], dtype=jnp.int32)
    # chosen, not multiplied by zero: another adapter's product may have overflowed
    inner = jnp.where(own[..., None], inner, 0).astype(pair.b.dtype)
    return jnp.einsum("tar,aro->to", inner, pair.b, preferred_element_type=jnp.float32)
