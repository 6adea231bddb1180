"""How a pool of K and V lies in memory.

Callers see R rows of D numbers per token: K of head 0, V of head 0, K of head 1, and so
on (R = 2K), or for multi-head latent attention one row that is K and begins with V.
What the pool stores is chosen per platform by `kv_layout`, since XLA copies a pool whose
shape it dislikes on every step. Only the methods of `KVLayout` know the difference.
"""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Shaped

from pallas_kernels.quantization import is_quantized, quantize

TPU_LANES = 128
TPU_ROW_TILE = 8
PLATFORMS = ("cpu", "gpu", "tpu")
POOL_DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")
# On CPU these are stored as bit patterns: the CPU compiler of jax 0.10.2 turns a bfloat16
# scatter, or dynamic_update_slice, into a conversion of the whole pool to float32 and back.
CPU_BITS = {"bfloat16": np.dtype(np.uint16), "float8_e4m3fn": np.dtype(np.uint8)}

Packing = Literal["interleaved", "packed", "latent"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Physical shape of one token's K and V in one layer: `rows` of `padded_dim`.

    interleaved: a row is one head's K or V, zero-padded at its end.
    packed: a row is one head's K followed by its V.
    latent: the only row is K, its first `value_dim` numbers are V; no row axis is stored.
    Rows beyond those that the heads need are zero.
    """

    platform: str
    kv_heads: int
    head_dim: int
    value_dim: int  # below head_dim only if latent
    rows: int
    padded_dim: int
    packing: Packing
    dtype: np.dtype  # of the numbers
    storage_dtype: np.dtype  # of the array: as wide, maybe only their bit patterns

    @property
    def num_rows(self) -> int:
        """R, the rows of a token that callers see."""
        return self.kv_heads if self.packing == "latent" else 2 * self.kv_heads

    @property
    def is_quantized(self) -> bool:
        """Whether a pool has scales."""
        return is_quantized(self.dtype)

    def keeps_in_place(self, block_size: int) -> bool:
        """Whether XLA updates such a pool in place: latents on TPU have no row axis, so
        that tokens take the place of rows."""
        if self.platform != "tpu" or self.packing != "latent":
            return True
        return _tpu_rows(block_size, self.dtype.itemsize) == block_size

    def block_shape(self, block_size: int) -> tuple[int, ...]:
        """Of a block in the array of numbers."""
        row_axis = () if self.packing == "latent" else (self.rows,)
        return (block_size, *row_axis, self.padded_dim)

    def scale_shape(self, block_size: int) -> tuple[int, int]:
        """Of a block's scales: that of row r of the token at offset b is entry b·R + r.

        On TPU whole rows of lanes, since a narrow last axis would be padded to 128.
        """
        if self.platform != "tpu":
            return block_size, self.num_rows
        rows = -(-block_size * self.num_rows // TPU_LANES)
        return _tpu_rows(rows, 4), TPU_LANES

    def bytes_per_block(self, block_size: int) -> int:
        """Of one layer, padding and scales included."""
        nbytes = math.prod(self.block_shape(block_size)) * self.storage_dtype.itemsize
        if self.is_quantized:
            nbytes += 4 * math.prod(self.scale_shape(block_size))
        return nbytes

    def padding_factor(self, block_size: int) -> float:
        """Physical over logical bytes, scales counted in both."""
        row_bytes = self.head_dim * self.dtype.itemsize + 4 * self.is_quantized
        return self.bytes_per_block(block_size) / (block_size * self.num_rows * row_bytes)

    def encode(
        self, rows: Float[Array, "*lead R D"]
    ) -> tuple[Shaped[Array, "*stored"], Float32[Array, "*lead R"] | None]:
        """Numbers as stored and, if quantised, the scales of the rows."""
        if self.is_quantized:
            values, scales = quantize(rows, self.dtype)
            return self.pack(values), scales
        return self.pack(rows.astype(self.dtype)), None

    def pack(self, rows: Shaped[Array, "*lead R D"]) -> Shaped[Array, "*stored"]:
        """Lays out numbers of the pool's dtype as it stores them."""
        *lead, num_rows, head_dim = rows.shape
        if (num_rows, head_dim) != (self.num_rows, self.head_dim):
            raise ValueError(
                f"rows of shape [..., {num_rows}, {head_dim}] do not fit a pool of "
                f"kv_heads={self.kv_heads}, head_dim={self.head_dim}; pass a token's rows "
                f"as [..., {self.num_rows}, {self.head_dim}]."
            )
        if self.packing == "packed":
            rows = rows.reshape(*lead, self.kv_heads, 2 * head_dim)
        missing = (self.rows - rows.shape[-2], self.padded_dim - rows.shape[-1])
        if any(missing):
            rows = jnp.pad(rows, [(0, 0)] * len(lead) + [(0, count) for count in missing])
        if self.packing == "latent":
            rows = rows[..., 0, :]
        if self.storage_dtype != self.dtype:
            rows = lax.bitcast_convert_type(rows, self.storage_dtype)
        return rows

    def unpack(self, stored: Shaped[Array, "*stored"]) -> Shaped[Array, "*lead R D"]:
        """Converts what the pool stores to rows of its dtype; the inverse of `pack`."""
        if self.storage_dtype != self.dtype:
            stored = lax.bitcast_convert_type(stored, self.dtype)
        if self.packing == "latent":
            return stored[..., None, : self.head_dim]
        if self.packing == "packed":
            heads = stored[..., : self.kv_heads, : 2 * self.head_dim]
            return heads.reshape(*stored.shape[:-2], self.num_rows, self.head_dim)
        return stored[..., : self.num_rows, : self.head_dim]

    def split(
        self, rows: Shaped[Array, "*lead R D"]
    ) -> tuple[Shaped[Array, "*lead K D"], Shaped[Array, "*lead K Dv"]]:
        """K and V of every head."""
        if self.packing == "latent":
            return rows, rows[..., : self.value_dim]
        return rows[..., 0::2, :], rows[..., 1::2, :]

    def split_scales(
        self, scales: Float32[Array, "*lead R"]
    ) -> tuple[Float32[Array, "*lead K"], Float32[Array, "*lead K"]]:
        """Those of K and V of every head."""
        if self.packing == "latent":
            return scales, scales
        return scales[..., 0::2], scales[..., 1::2]

    def pack_scales(self, scales: Float32[Array, "*lead B R"]) -> Float32[Array, "*stored"]:
        """Lays out the scales of whole blocks as the pool stores them."""
        *lead, block_size, num_rows = scales.shape
        shape = self.scale_shape(block_size)
        flat = scales.reshape(*lead, block_size * num_rows)
        missing = math.prod(shape) - flat.shape[-1]
        flat = jnp.pad(flat, [(0, 0)] * len(lead) + [(0, missing)])
        return flat.reshape(*lead, *shape)

    def unpack_scales(
        self, stored: Float32[Array, "*stored"], block_size: int
    ) -> Float32[Array, "*lead B R"]:
        """The inverse of `pack_scales`."""
        lead = stored.shape[:-2]
        flat = stored.reshape(*lead, -1)[..., : block_size * self.num_rows]
        return flat.reshape(*lead, block_size, self.num_rows)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tpu_rows(rows: int, itemsize: int) -> int:
    """The smallest count ≥ `rows` that XLA keeps in place: 2, 4, 8k; of bytes 4, 8k."""
    small = (4,) if itemsize == 1 else (2, 4)
    return next((r for r in small if rows <= r), _round_up(rows, TPU_ROW_TILE))


def kv_layout(
    kv_heads_per_shard: int,
    head_dim: int,
    dtype: Any,
    platform: str,
    value_dim: int | None = None,
) -> KVLayout:
    """Chooses the physical layout; pure in its arguments.

    Args:
      value_dim: for multi-head latent attention (DeepSeek-V2, §2.1): a token's one row
        of `head_dim` numbers is K, and its first `value_dim` are V.

    Raises:
      ValueError: a size below 1, an unknown platform or dtype, or a latent row for more
        than one head.
    """
    if kv_heads_per_shard < 1 or head_dim < 1:
        raise ValueError(
            f"{kv_heads_per_shard=} and {head_dim=} must be at least 1; check the model "
            "and the number of shards."
        )
    if platform not in PLATFORMS:
        raise ValueError(f"{platform=} has no layout; choose from {PLATFORMS}.")
    dtype = np.dtype(dtype)
    if dtype.name not in POOL_DTYPES:
        raise ValueError(f"dtype={dtype.name} is not offered; choose from {POOL_DTYPES}.")
    if value_dim is not None and not (
        kv_heads_per_shard == 1 and 1 <= value_dim <= head_dim
    ):
        raise ValueError(
            f"{value_dim=} needs kv_heads_per_shard=1, got {kv_heads_per_shard}, and at "
            f"most {head_dim=}; omit it for K and V stored apart."
        )
    rows, padded_dim, packing = 2 * kv_heads_per_shard, head_dim, "interleaved"
    if value_dim is not None:
        rows, packing = 1, "latent"
    if platform == "tpu":
        if packing == "interleaved":
            if 2 * head_dim == TPU_LANES:
                rows, padded_dim, packing = kv_heads_per_shard, TPU_LANES, "packed"
            rows = _tpu_rows(rows, dtype.itemsize)
        padded_dim = _round_up(padded_dim, TPU_LANES)
    bits = CPU_BITS.get(dtype.name) if platform == "cpu" else None
    return KVLayout(
        platform=platform,
        kv_heads=kv_heads_per_shard,
        head_dim=head_dim,
        value_dim=head_dim if value_dim is None else value_dim,
        rows=rows,
        padded_dim=padded_dim,
        packing=packing,
        dtype=dtype,
        storage_dtype=dtype if bits is None else bits,
    )
