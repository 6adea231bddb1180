"""How a pool of K and V lies in memory, and the pytree that carries it.

Callers see R = 2K rows of D numbers per token: K of head 0, V of head 0, K of head 1,
and so on. What the pool stores is chosen per platform by `kv_layout`, since XLA copies
a pool whose shape it dislikes on every step. Only `KVLayout.pack`, `.unpack` and
`.split` know the difference.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32, Shaped

TPU_LANES = 128
TPU_ROW_TILE = 8
PLATFORMS = ("cpu", "gpu", "tpu")
POOL_DTYPES = ("float32", "bfloat16")

Packing = Literal["interleaved", "packed"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Physical shape of one token's K and V in one layer: `rows` of `padded_dim`.

    interleaved: a row is one head's K or V, zero-padded at its end.
    packed: a row is one head's K followed by its V.
    Rows beyond those that the heads need are zero.
    """

    kv_heads: int
    head_dim: int
    rows: int
    padded_dim: int
    packing: Packing
    dtype: np.dtype  # of the numbers
    storage_dtype: np.dtype  # of the array: as wide, maybe only their bit patterns

    @property
    def bytes_per_token(self) -> int:
        """Of one layer, padding included."""
        return self.rows * self.padded_dim * self.storage_dtype.itemsize

    @property
    def padding_factor(self) -> float:
        """Physical over logical bytes."""
        return self.rows * self.padded_dim / (2 * self.kv_heads * self.head_dim)

    def pack(self, rows: Float[Array, "*lead R D"]) -> Shaped[Array, "*lead Rp Dp"]:
        """Converts logical rows to what the pool stores."""
        *lead, num_rows, head_dim = rows.shape
        if (num_rows, head_dim) != (2 * self.kv_heads, self.head_dim):
            raise ValueError(
                f"rows of shape [..., {num_rows}, {head_dim}] do not fit a pool of "
                f"kv_heads={self.kv_heads}, head_dim={self.head_dim}; pass K and V of "
                f"each head as [..., {2 * self.kv_heads}, {self.head_dim}]."
            )
        rows = rows.astype(self.dtype)
        if self.packing == "packed":
            rows = rows.reshape(*lead, self.kv_heads, 2 * head_dim)
        missing = (self.rows - rows.shape[-2], self.padded_dim - rows.shape[-1])
        if any(missing):
            rows = jnp.pad(rows, [(0, 0)] * len(lead) + [(0, count) for count in missing])
        if self.storage_dtype != self.dtype:
            rows = lax.bitcast_convert_type(rows, self.storage_dtype)
        return rows

    def unpack(self, stored: Shaped[Array, "*lead Rp Dp"]) -> Float[Array, "*lead R D"]:
        """Converts what the pool stores to logical rows; the inverse of `pack`."""
        if self.storage_dtype != self.dtype:
            stored = lax.bitcast_convert_type(stored, self.dtype)
        if self.packing == "packed":
            heads = stored[..., : self.kv_heads, : 2 * self.head_dim]
            shape = (*stored.shape[:-2], 2 * self.kv_heads, self.head_dim)
            return heads.reshape(shape)
        return stored[..., : 2 * self.kv_heads, : self.head_dim]

    def split(
        self, stored: Shaped[Array, "*lead Rp Dp"]
    ) -> tuple[Float[Array, "*lead K D"], Float[Array, "*lead K D"]]:
        """K and V of every head."""
        rows = self.unpack(stored)
        return rows[..., 0::2, :], rows[..., 1::2, :]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tpu_rows(rows: int, itemsize: int) -> int:
    """The smallest count ≥ `rows` that XLA keeps in place: 2, 4, 8k; of bytes 4, 8k."""
    small = (4,) if itemsize == 1 else (2, 4)
    return next((r for r in small if rows <= r), _round_up(rows, TPU_ROW_TILE))


def kv_layout(
    kv_heads_per_shard: int, head_dim: int, dtype: Any, platform: str
) -> KVLayout:
    """Chooses the physical layout; pure in its arguments.

    On CPU a bfloat16 pool holds bit patterns (uint16): the CPU compiler of jax 0.10.2
    turns a bfloat16 scatter, or dynamic_update_slice, into a conversion of the whole
    pool to float32 and back.

    Raises:
      ValueError: a size below 1, or a platform other than cpu, gpu and tpu.
    """
    if kv_heads_per_shard < 1 or head_dim < 1:
        raise ValueError(
            f"{kv_heads_per_shard=} and {head_dim=} must be at least 1; check the model "
            "and the number of shards."
        )
    if platform not in PLATFORMS:
        raise ValueError(f"{platform=} has no layout; choose from {PLATFORMS}.")
    dtype = np.dtype(dtype)
    rows, padded_dim, packing = 2 * kv_heads_per_shard, head_dim, "interleaved"
    if platform == "tpu":
        if 2 * head_dim == TPU_LANES:
            rows, padded_dim, packing = kv_heads_per_shard, TPU_LANES, "packed"
        rows = _tpu_rows(rows, dtype.itemsize)
        padded_dim = _round_up(padded_dim, TPU_LANES)
    as_bits = platform == "cpu" and dtype == jnp.bfloat16
    return KVLayout(
        kv_heads=kv_heads_per_shard,
        head_dim=head_dim,
        rows=rows,
        padded_dim=padded_dim,
        packing=packing,
        dtype=dtype,
        storage_dtype=np.dtype(np.uint16) if as_bits else dtype,
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class KVBlocks:
    """The pool of one cache group: block 0 is the null block, its content never used.

    `scales` belongs to quantised formats; other pools have None.
    """

    kv: Shaped[Array, "L N B Rp Dp"]
    scales: None = None
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

    def rows(self) -> Float[Array, "L N B R D"]:
        """All logical rows, a copy as large as the pool: for tests and tools."""
        return self.layout.unpack(self.kv)


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
    layout: KVLayout, *, num_layers: int, num_blocks: int, block_size: int, dtype: Any
) -> KVBlocks:
    """A pool of zeros. `num_blocks` includes the null block.

    Raises:
      ValueError: a size below its minimum, or a dtype that the layout was not made for
        or that no op reads yet.
    """
    if num_layers < 1 or num_blocks < 2 or block_size < 1:
        raise ValueError(
            f"{num_layers=} and {block_size=} must be at least 1, {num_blocks=} at least "
            "2 (block 0 is the null block)."
        )
    dtype = np.dtype(dtype)
    if dtype != layout.dtype:
        raise ValueError(
            f"dtype={dtype.name} differs from {layout.dtype.name}, which the layout was "
            "made for; pass the same one to kv_layout."
        )
    if dtype.name not in POOL_DTYPES:
        raise ValueError(f"dtype={dtype.name} is not offered; choose from {POOL_DTYPES}.")
    shape = (num_layers, num_blocks, block_size, layout.rows, layout.padded_dim)
    return KVBlocks(kv=jnp.zeros(shape, layout.storage_dtype), layout=layout)


def block_and_offset(
    slots: Int32[Array, "T"], block_size: int
) -> tuple[Int32[Array, "T"], Int32[Array, "T"]]:
    """slot = block · B + offset. `//` on traced ints would ask a TPU while tracing."""
    size = jnp.int32(block_size)
    return lax.div(slots, size), lax.rem(slots, size)
