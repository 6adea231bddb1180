"""The sizes of a model that decide what its steps cost and what its K and V take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paxkv.checks import Check, integer_in, keep_checked, named, one_of, optional

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "float8_e4m3fn": 1,
}
SCALE_BYTES = 4  # a float32 per row of a head's K or V, as the pool keeps them
QUANTIZED = ("int8", "float8_e4m3fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer as numbers.

    Cache groups are those of the engine: where only some layers have windows, group 0
    has the unbounded layers and group 1 the windowed ones.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int  # of the MLP, of the dense ones where some are experts
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries and keys
    value_dim: int | None = None  # of a head; None: head_dim
    # latent attention: numbers that a token stores per layer, for K and V at once, and
    # those of them that are V
    latent_dim: int | None = None
    latent_value_dim: int | None = None
    num_parameters: int
    num_active_parameters: int | None = None  # that one token meets; None: all
    num_experts: int = 0  # routed ones of a layer
    experts_per_token: int = 0
    vocab_size: int
    max_context: int  # tokens
    window: int | None = None  # tokens that a windowed layer sees
    num_window_layers: int = 0
    weights_dtype: str = "bfloat16"

    def __post_init__(self):
        keep_checked(self, _CHECKS)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of num_kv_heads="
                f"{self.num_kv_heads}; check the model's config."
            )
        if self.num_window_layers > self.num_layers or (
            bool(self.num_window_layers) != (self.window is not None)
        ):
            raise ValueError(
                f"num_window_layers={self.num_window_layers} of num_layers="
                f"{self.num_layers} with window={self.window}: give both or neither, and "
                "no more layers than there are."
            )
        if self.active_parameters > self.num_parameters or (
            (self.active_parameters < self.num_parameters) != bool(self.num_experts)
        ):
            raise ValueError(
                f"num_active_parameters={self.num_active_parameters} must be below "
                f"num_parameters={self.num_parameters} with experts and None without, "
                f"num_experts={self.num_experts}; correct one of them."
            )
        if bool(self.num_experts) != (0 < self.experts_per_token < self.num_experts):
            raise ValueError(
                f"experts_per_token={self.experts_per_token} must be in "
                f"1..num_experts - 1, num_experts={self.num_experts}; or both are 0."
            )
        if (self.latent_dim is None) != (self.latent_value_dim is None):
            raise ValueError(
                f"latent_dim={self.latent_dim} and latent_value_dim="
                f"{self.latent_value_dim} belong together; give both or neither."
            )

    @property
    def active_parameters(self) -> int:
        """That one token meets."""
        active = self.num_active_parameters
        return self.num_parameters if active is None else active

    @property
    def expert_parameters(self) -> float:
        """In routed experts, of all layers: those that a token skips, and its own."""
        if not self.num_experts:
            return 0.0
        skipped = 1 - self.experts_per_token / self.num_experts
        return (self.num_parameters - self.active_parameters) / skipped

    @property
    def weights_bytes(self) -> int:
        """Of all parameters; scales of quantised weights are left out."""
        return self.num_parameters * ITEM_BYTES[self.weights_dtype]

    @property
    def layers_per_group(self) -> tuple[int, ...]:
        """Layers that share a pool."""
        unbounded = self.num_layers - self.num_window_layers
        return tuple(count for count in (unbounded, self.num_window_layers) if count)

    @property
    def group_windows(self) -> tuple[int | None, ...]:
        """Per cache group, tokens that a position sees; None: all."""
        if not self.num_window_layers:
            return (None,)
        if self.num_window_layers == self.num_layers:
            return (self.window,)
        return (None, self.window)

    @property
    def cached_heads(self) -> int:
        """Parts into which the chips of a tensor-parallel group can split the cache."""
        return 1 if self.latent_dim is not None else self.num_kv_heads

    @property
    def copies_per_block(self) -> float:
        """Contiguous pieces of a block in a layer-major pool, mean over the cache groups:
        K and V of each layer, or its latents (EVAL §1.13 counts 80 for OPT-13B)."""
        pieces = 1 if self.latent_dim is not None else 2
        return pieces * self.num_layers / len(self.layers_per_group)

    def kv_bytes_per_token(self, kv_dtype: str) -> tuple[int, ...]:
        """Per cache group, of all its layers, scales included; without the padding that
        some devices need.

        Raises:
          ValueError: the dtype is unknown.
        """
        itemsize = ITEM_BYTES[named("kv_dtype", kv_dtype, one_of(tuple(ITEM_BYTES)))]
        scale = SCALE_BYTES if kv_dtype in QUANTIZED else 0
        if self.latent_dim is not None:
            per_layer = self.latent_dim * itemsize + scale
        else:
            value_dim = self.head_dim if self.value_dim is None else self.value_dim
            numbers = (self.head_dim + value_dim) * itemsize
            per_layer = self.num_kv_heads * (numbers + 2 * scale)
        return tuple(layers * per_layer for layers in self.layers_per_group)

    def flops_per_pair(self, *, is_decode: bool) -> tuple[int, ...]:
        """Per cache group, of a query and a position that it attends to: a product and a
        sum for each number of K and of V.

        Latent attention decodes on the latents themselves and prefills with K and V made
        of them (DeepSeek-V2, §2.1.2, https://arxiv.org/abs/2405.04434).
        """
        value_dim = self.head_dim if self.value_dim is None else self.value_dim
        numbers = self.head_dim + value_dim
        if is_decode and self.latent_dim is not None:
            assert self.latent_value_dim is not None, "checked with latent_dim"
            numbers = self.latent_dim + self.latent_value_dim
        per_layer = 2 * self.num_heads * numbers
        return tuple(layers * per_layer for layers in self.layers_per_group)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("is no name; give a text")
    return value


_CHECKS: Mapping[str, Check] = {
    "name": _name,
    **dict.fromkeys(
        (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "num_parameters",
            "vocab_size",
            "max_context",
        ),
        integer_in(1, None, "see the model's config.json"),
    ),
    **dict.fromkeys(
        (
            "value_dim",
            "latent_dim",
            "latent_value_dim",
            "num_active_parameters",
            "window",
        ),
        optional(integer_in(1, None, "None where the model has none")),
    ),
    **dict.fromkeys(
        ("num_experts", "experts_per_token", "num_window_layers"),
        integer_in(0, None, "0 where the model has none"),
    ),
    "weights_dtype": one_of(tuple(ITEM_BYTES)),
}
