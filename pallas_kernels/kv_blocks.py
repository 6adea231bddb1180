"""The pool of a cache group: the pytree that every op takes and returns."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32, Shaped

from pallas_kernels.layout import KVLayout
from pallas_kernels.quantization import dequantize


class KVTile(NamedTuple):
    """Some blocks' K and V, in the pool's dtype; scales are None if not quantised."""

    k: Shaped[Array, "*blocks B K D"]
    v: Shaped[Array, "*blocks B K Dv"]
    k_scales: Float32[Array, "*blocks B K"] | None
    v_scales: Float32[Array, "*blocks B K"] | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class KVBlocks:
    """Block 0 is the null block: its content is never used.

    `kv` is [L, N, B, rows, Dp], for a latent layout [L, N, B, Dp]. `scales` [L, N,
    *layout.scale_shape(B)] belongs to quantised pools; others have None.
    """

    kv: Shaped[Array, "L N B *row"]
    scales: Float32[Array, "L N scale_rows lanes"] | None = None
    layout: KVLayout  # static

    @property
    def num_layers(self) -> int:
        return self.kv.shape[0]

    @property
    def num_blocks(self) -> int:
        return self.kv.shape[1]

    @property
    def block_size(self) -> int:
        return self.kv.shape[2]

    @classmethod
    def of_rows(cls, layout: KVLayout, rows: Shaped[Array, "L N B R D"]) -> "KVBlocks":
        """A pool that holds these rows, rounded to its dtype."""
        kv, scales = layout.encode(rows)
        scales = None if scales is None else layout.pack_scales(scales)
        return cls(kv=kv, scales=scales, layout=layout)

    def rows(self) -> Shaped[Array, "L N B R D"]:
        """All rows, a copy as large as the pool: for tests and tools."""
        rows = self.layout.unpack(self.kv)
        if self.scales is None:
            return rows
        return dequantize(rows, self.layout.unpack_scales(self.scales, self.block_size))

    def read(
        self, layer: Int32[Array, ""] | int, blocks: Int32[Array, "*blocks"]
    ) -> KVTile:
        """Gathers blocks of one layer."""
        k, v = self.layout.split(self.layout.unpack(self.kv[layer, blocks]))
        if self.scales is None:
            return KVTile(k, v, None, None)
        scales = self.layout.unpack_scales(self.scales[layer, blocks], self.block_size)
        return KVTile(k, v, *self.layout.split_scales(scales))


def _flatten_with_keys(cache: KVBlocks) -> tuple[tuple[tuple[Any, Any], ...], KVLayout]:
    key = jax.tree_util.GetAttrKey
    return ((key("kv"), cache.kv), (key("scales"), cache.scales)), cache.layout


def _flatten(cache: KVBlocks) -> tuple[tuple[Any, ...], KVLayout]:
    return (cache.kv, cache.scales), cache.layout


def _unflatten(layout: KVLayout, children: Iterable[Any]) -> KVBlocks:
    # jax also puts shapes, shardings and None here, so no check of types may run
    cache = object.__new__(KVBlocks)
    for name, value in zip(("kv", "scales"), children, strict=True):
        object.__setattr__(cache, name, value)
    object.__setattr__(cache, "layout", layout)
    return cache


jax.tree_util.register_pytree_with_keys(KVBlocks, _flatten_with_keys, _unflatten, _flatten)


def make_cache(
    layout: KVLayout, *, num_layers: int, num_blocks: int, block_size: int
) -> KVBlocks:
    """A pool of zeros. `num_blocks` includes the null block.

    Raises:
      ValueError: a size below its minimum, or a latent pool whose block size makes XLA
        copy it on TPU.
    """
    if num_layers < 1 or num_blocks < 2 or block_size < 1:
        raise ValueError(
            f"{num_layers=} and {block_size=} must be at least 1, {num_blocks=} at least "
            "2 (block 0 is the null block)."
        )
    if not layout.keeps_in_place(block_size):
        raise ValueError(
            f"{block_size=} of a latent pool of {layout.dtype.name} would be copied on TPU "
            "every step; use 4 or a multiple of 8 (2 as well, with 16 bits or more)."
        )
    lead = (num_layers, num_blocks)
    kv = jnp.zeros((*lead, *layout.block_shape(block_size)), layout.storage_dtype)
    scales = None
    if layout.is_quantized:
        scales = jnp.zeros((*lead, *layout.scale_shape(block_size)), jnp.float32)
    return KVBlocks(kv=kv, scales=scales, layout=layout)


def block_and_offset(
    slots: Int32[Array, "T"], block_size: int
) -> tuple[Int32[Array, "T"], Int32[Array, "T"]]:
    """slot = block · B + offset. `//` on traced ints would ask a TPU while tracing."""
    size = jnp.int32(block_size)
    return lax.div(slots, size), lax.rem(slots, size)
