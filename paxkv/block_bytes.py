"""Blocks of a pool as rows of bytes, the form in which they leave the device.

A row is the numbers of all layers and then, if quantised, their scales; so its length is
what the cache plan counts for a block of the group. Arrays come and go in pinned host
memory where the device offers it, since only that is copied without a detour.
"""

import math

import jax
import numpy as np
from jax.sharding import Sharding
from jaxtyping import UInt8

from pallas_kernels.kv_blocks import KVBlocks

JAX_ALIGNMENT = 64  # bytes


def bytes_of_block(cache: KVBlocks) -> int:
    """Of all layers, padding and scales included."""
    return cache.num_layers * cache.layout.bytes_per_block(cache.block_size)


def start_to_host(moved: KVBlocks) -> KVBlocks:
    """Starts the way of gathered blocks to the host, and waits for nothing."""

    def start(x: jax.Array) -> jax.Array:
        pinned = _pinned_host(moved, x.sharding)
        if pinned is not None:
            return jax.device_put(x, pinned)
        x.copy_to_host_async()
        return x

    return jax.tree.map(start, moved)


def to_payload(moved: KVBlocks, num_blocks: int) -> UInt8[np.ndarray, "n bytes"]:
    """The first blocks of what was gathered, once they have arrived."""

    def by_block(x: np.ndarray) -> np.ndarray:
        by_layer = np.ascontiguousarray(x).reshape(*x.shape[:2], -1).view(np.uint8)
        return by_layer[:, :num_blocks].swapaxes(0, 1).reshape(num_blocks, -1)

    parts = [by_block(x) for x in jax.tree.leaves(jax.device_get(moved))]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def from_payload(
    payload: UInt8[np.ndarray, "n bytes"], cache: KVBlocks, num_blocks: int
) -> KVBlocks:
    """Blocks on the device for `scatter_blocks`: those of the payload, then zeros."""
    count, start = len(payload), 0
    arrays = []
    for x in jax.tree.leaves(cache):
        shape = (x.shape[0], num_blocks, *x.shape[2:])
        width = math.prod(x.shape[2:]) * x.dtype.itemsize  # of one layer
        stop = start + x.shape[0] * width
        by_layer = _aligned_empty((x.shape[0], num_blocks, width))
        rows = payload[:, start:stop].reshape(count, x.shape[0], width)
        by_layer[:, :count] = rows.swapaxes(0, 1)
        by_layer[:, count:] = 0
        host = by_layer.view(x.dtype).reshape(shape)
        pinned = _pinned_host(cache, x.sharding)
        if pinned is not None:
            host = jax.device_put(host, pinned)
        arrays.append(jax.device_put(host, x.sharding))
        start = stop
    return jax.tree.unflatten(jax.tree.structure(cache), arrays)


def _aligned_empty(shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    """Memory that jax on a CPU takes over as it is; it copies what is not aligned so."""
    nbytes = math.prod(shape)
    raw = np.empty(nbytes + JAX_ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % JAX_ALIGNMENT
    return raw[first : first + nbytes].reshape(shape)


def _pinned_host(cache: KVBlocks, sharding: Sharding) -> Sharding | None:
    """None on CPU, where the pool is host memory, and where there is no such memory."""
    if cache.layout.platform == "cpu":
        return None
    device = next(iter(sharding.device_set))
    offered = {memory.kind for memory in device.addressable_memories()}
    return sharding.with_memory_kind("pinned_host") if "pinned_host" in offered else None
