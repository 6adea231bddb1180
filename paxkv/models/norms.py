"""The norms of a decoder."""

from flax import nnx
from jaxtyping import Array, Float

from paxkv.models.config import ModelConfig


def make_norm(config: ModelConfig, size: int, rngs: nnx.Rngs) -> nnx.Module:
    """The kind that the family has around attention and MLP."""
    if config.norm == "rms":
        return nnx.RMSNorm(size, epsilon=config.norm_eps, rngs=rngs)
    # the fast variance, E[x^2] - E[x]^2, cancels where the mean is large
    return nnx.LayerNorm(size, epsilon=config.norm_eps, use_fast_variance=False, rngs=rngs)


def normed(norm: nnx.Module, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Norm weights are float32 whatever the others are; activations keep their dtype."""
    return norm(x).astype(x.dtype)
