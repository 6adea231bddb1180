"""Which layers of a model have the same form, so that one scan runs them."""

from typing import NamedTuple

from paxkv.models.config import ModelConfig

LAYERS = "layers"
DENSE_LAYERS = "dense_layers"  # before the first that has experts


class Stack(NamedTuple):
    """Layers [first, first + count); `name` is the decoder's attribute that holds their
    parameters, stacked on axis 0."""

    name: str
    first: int
    count: int
    has_experts: bool


def layer_stacks(config: ModelConfig) -> tuple[Stack, ...]:
    """In the order in which they run; together they are all layers, each once."""
    if config.experts is None:
        return (Stack(LAYERS, 0, config.num_layers, has_experts=False),)
    first = config.experts.first_layer
    dense = Stack(DENSE_LAYERS, 0, first, has_experts=False)
    sparse = Stack(LAYERS, first, config.num_layers - first, has_experts=True)
    return (dense, sparse) if first else (sparse,)
