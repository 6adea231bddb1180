"""Two products around an activation, gated or not."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

Map = Callable[[Array], Array]  # a linear map of the last axis

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def mlp(
    x: Float[Array, "rows hidden"],
    activation: str,
    *,
    gate: Map | None,
    up: Map,
    down: Map,
) -> Float[Array, "rows hidden"]:
    """`gate` None: the activation is applied to what goes up."""
    activate = ACTIVATIONS[activation]
    if gate is None:
        return down(activate(up(x)))
    return down(activate(gate(x)) * up(x))
