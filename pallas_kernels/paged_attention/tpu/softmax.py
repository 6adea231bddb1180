"""What the TPU kernel does with a chunk of K and V once it is in VMEM.

The chunk lies as in the pool: rows of all heads side by side. Two ways to meet it:

by row: all query heads times all stored rows, V and other heads included; a mask leaves
  a head its own K. The weights are moved one column on, from K to V, and multiply the
  chunk once more. Wasted products, but no data is moved: for one query the matrix unit
  spends its time loading rows, of which these are as many.
by head: the rows are unpacked to float32, from where those of one head are loaded with a
  stride, which the load unit does for 32-bit numbers in 128 lanes only: longer rows are
  kept as planes. For tiles of many queries.

Both are an online softmax (Milakov and Gimelshein 2018) in float32.
"""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.layout import TPU_LANES
from pallas_kernels.paged_attention.tpu.plan import Plan

_TRANSPOSED = (((1,), (1,)), ((), ()))
_PLAIN = (((1,), (0,)), ((), ()))


def mark_other_heads(ref, plan: Plan) -> None:
    """Fills the mask of the rows that are not K of a query head's own kv head."""
    if "other_heads" not in ref:
        return
    shape = (plan.num_heads, plan.chunk_rows)
    row = lax.rem(lax.broadcasted_iota(jnp.int32, shape, 1), plan.layout.rows)
    kv_head = lax.div(lax.broadcasted_iota(jnp.int32, shape, 0), plan.groups)
    own = kv_head * (2 if plan.layout.packing == "interleaved" else 1)
    ref["other_heads"][...] = jnp.where(row == own, 0.0, -jnp.inf)


def clear_unread(ref, plan: Plan, tile, first_key, slot) -> None:
    """Sets to 0 what the tile does not read: stale, or of another, and 0 · NaN is NaN."""
    size = plan.block_size

    def clear(block):
        start = tile.start - first_key - block * size
        end = tile.end - first_key - block * size
        shape = plan.layout.block_shape(size)
        offset = lax.broadcasted_iota(jnp.int32, shape, 0)
        stored = ref["blocks"][slot, block].astype(jnp.float32)
        stored = jnp.where((offset >= start) & (offset < end), stored, 0)
        ref["blocks"][slot, block] = stored.astype(plan.layout.storage_dtype)
        if plan.layout.is_quantized:
            shape = plan.layout.scale_shape(size)
            entry = lax.broadcasted_iota(jnp.int32, shape, 0) * TPU_LANES
            entry += lax.broadcasted_iota(jnp.int32, shape, 1)
            rows = plan.layout.num_rows
            read = (entry >= start * rows) & (entry < end * rows)
            ref["scales"][slot, block] = jnp.where(read, ref["scales"][slot, block], 0)

    num_whole = lax.div(jnp.maximum(tile.end - first_key, 0), jnp.int32(size))
    lax.fori_loop(num_whole, plan.blocks_per_chunk, lambda block, _: clear(block), None)

    @pl.when((tile.start > first_key) & (num_whole > 0))
    def _():
        clear(0)


def begin(ref, plan: Plan, buffer, num_queries: int) -> None:
    """Loads the tile's queries and empties its softmaxes."""
    target = ref[f"q_{num_queries}"]
    queries, groups = ref["queries"], plan.groups
    if plan.by_row(num_queries):
        q = queries[buffer, 0] if num_queries == 1 else queries[buffer]
        target[0] = q.reshape(target.shape[1:]).astype(plan.compute_dtype)
    elif num_queries == 1:
        for head in range(plan.layout.kv_heads):
            q = queries[buffer, 0].astype(jnp.float32)
            q = q[head * groups : (head + 1) * groups]
            target[head] = q.astype(plan.compute_dtype)
    else:
        # rows of a head: by group, then query
        q = jnp.swapaxes(queries[buffer].astype(jnp.float32), 0, 1)
        target[...] = q.reshape(target.shape).astype(plan.compute_dtype)
    for name, value in (("largest", -jnp.inf), ("total", 0), ("values", 0)):
        state = ref[f"{name}_{num_queries}"]
        state[...] = jnp.full(state.shape, value, jnp.float32)


def add_chunk(ref, plan: Plan, tile, first_key, slot, num_queries: int) -> None:
    """Adds the chunk in `slot`, of positions from `first_key` on."""
    mask = partial(_mask, ref, plan, tile, first_key, num_queries)
    add = partial(_add_keys, ref, plan, num_queries)
    if plan.by_row(num_queries):
        k = ref["blocks"][slot].astype(plan.compute_dtype)
        k = k.reshape(plan.chunk_rows, plan.layout.padded_dim)
        scales = None
        if plan.layout.is_quantized:
            scales = ref["scales"][slot].reshape(plan.blocks_per_chunk, -1)
            scales = scales[:, : plan.block_size * plan.layout.rows]
            scales = scales.reshape(1, plan.chunk_rows)
        add(0, k, k[:, : plan.value_lanes], mask(), scales)
        return
    _unpack_rows(ref, plan, slot)
    hidden = mask()

    def add_head(head, _):
        k, v = _keys_and_values(ref, plan, head)
        add(head, k.astype(plan.compute_dtype), v.astype(plan.compute_dtype), hidden, None)

    lax.fori_loop(0, plan.layout.kv_heads, add_head, None)


def _mask(ref, plan: Plan, tile, first_key, num_queries: int):
    """0 where a row's query sees a column's key, else -inf."""
    is_by_row = plan.by_row(num_queries)
    rows_per_key = plan.layout.rows if is_by_row else 1
    if num_queries == 1:  # the same for all heads
        column = lax.broadcasted_iota(jnp.int32, (1, plan.chunk_tokens * rows_per_key), 1)
        seen = column >= (tile.start - first_key) * rows_per_key
        seen &= column < (tile.end - first_key) * rows_per_key
        return jnp.where(seen, 0.0, -jnp.inf)
    shape = (plan.state_shape(num_queries)[1], plan.chunk_tokens * rows_per_key)
    row = lax.broadcasted_iota(jnp.int32, shape, 0)
    # by row: a latent's only row; rows of a tile by query, else by group
    query = lax.div(row, plan.num_heads) if is_by_row else lax.rem(row, num_queries)
    key = first_key + lax.broadcasted_iota(jnp.int32, shape, 1)
    position = tile.first_position + query
    seen = (query < tile.num_queries) & (key <= position)
    if plan.has_window:
        window = ref["settings"][1]
        seen &= (key > position - window) | (window == 0)
    return jnp.where(seen, 0.0, -jnp.inf)


def _add_keys(ref, plan: Plan, num_queries: int, head, k, v, hidden, scales) -> None:
    """Adds keys to the softmaxes `head`; `scales` multiply logits, and weights for V."""
    q, largest, total, values = (
        ref[f"{name}_{num_queries}"].at[head]
        for name in ("q", "largest", "total", "values")
    )
    product = partial(
        lax.dot_general, precision=plan.precision, preferred_element_type=jnp.float32
    )
    logits = product(q[...], k, _TRANSPOSED) * plan.scale
    if scales is not None:
        logits *= scales
    if plan.soft_cap is not None:
        logits = plan.soft_cap * jnp.tanh(logits / plan.soft_cap)
    logits += hidden
    is_by_row = plan.by_row(num_queries)
    if is_by_row and plan.layout.rows > 1:
        logits += ref["other_heads"][...]

    # `largest` and `total` are the same in every lane, which saves spreading them
    new_largest = jnp.maximum(largest[...], logits.max(axis=1, keepdims=True))
    # -inf - -inf is NaN: a row that has seen nothing yet counts from 0
    base = jnp.where(new_largest == -jnp.inf, 0.0, new_largest)
    decay = jnp.exp(largest[...] - base)
    weights = jnp.exp(logits - _repeat(base, logits.shape[1]))
    largest[...] = new_largest
    total[...] = total[...] * decay + weights.sum(axis=1, keepdims=True)
    if is_by_row and plan.layout.packing == "interleaved":
        weights = pltpu.roll(weights, 1, 1)  # V's row follows K's
    if scales is not None:
        weights *= scales
    added = product(weights.astype(plan.compute_dtype), v, _PLAIN)
    values[...] = values[...] * _repeat(decay, plan.value_lanes) + added


def _unpack_rows(ref, plan: Plan, slot) -> None:
    """Writes the chunk as float32, and its scales from lanes to rows, in every lane."""
    stored = ref["blocks"][slot].astype(jnp.float32)
    stored = stored.reshape(plan.chunk_rows, plan.layout.padded_dim)
    for plane in range(plan.planes):
        ref["rows"][plane] = stored[:, plane * TPU_LANES : (plane + 1) * TPU_LANES]
    if not plan.layout.is_quantized:
        return

    def unpack_scales(block, _):
        scales = ref["scales"][slot, block]
        for row in range(scales.shape[0]):
            lanes = jnp.broadcast_to(scales[row : row + 1], (TPU_LANES, TPU_LANES))
            target = slice(row * TPU_LANES, (row + 1) * TPU_LANES)
            ref["columns"][block, target] = lanes.T

    lax.fori_loop(0, plan.blocks_per_chunk, unpack_scales, None)


def _keys_and_values(ref, plan: Plan, head):
    """K and V of a kv head in float32, from `rows`."""

    def load(row):
        tokens = _every(plan.layout.rows, row, plan.chunk_tokens)
        planes = [ref["rows"][plane, tokens, :] for plane in range(plan.planes)]
        return planes[0] if len(planes) == 1 else jnp.concatenate(planes, axis=1)

    def scaled(x, row):
        if not plan.layout.is_quantized:
            return x
        offsets = _every(plan.layout.num_rows, row, plan.block_size)
        scales = ref["columns"][:, offsets, :1]
        return x * scales.reshape(plan.chunk_tokens, 1)

    if plan.layout.packing == "interleaved":
        return scaled(load(2 * head), 2 * head), scaled(load(2 * head + 1), 2 * head + 1)
    if plan.layout.packing == "packed":  # one row has both
        both = load(head)
        return scaled(both, 2 * head), scaled(both, 2 * head + 1)
    latent = scaled(load(0), 0)
    return latent, latent[:, : plan.value_lanes]


def _every(stride: int, first, count: int):
    return pl.ds(first, count, stride) if stride > 1 else pl.ds(first, count)


def finish(ref, plan: Plan, num_queries: int) -> None:
    """Divides by the sum of weights. Rows that saw no key give 0 and lse = -inf."""
    groups, result = plan.groups, ref["result"]
    total = ref[f"total_{num_queries}"][...]
    divisor = jnp.where(total == 0, 1.0, total)
    # log(0) of an unseen row would be right, -inf, but for `largest`, also -inf
    lse = ref[f"largest_{num_queries}"][...] + jnp.log(divisor)
    out = ref[f"values_{num_queries}"][...] / _repeat(divisor, plan.value_lanes)
    out = jnp.concatenate([out, lse], axis=2)
    if plan.by_row(num_queries):
        result[:num_queries] = out.reshape(num_queries, plan.num_heads, -1)
    elif num_queries == 1:
        for head in range(plan.layout.kv_heads):
            result[0, head * groups : (head + 1) * groups] = out[head]
    else:
        out = out.reshape(plan.num_heads, num_queries, -1)
        result[...] = jnp.swapaxes(out, 0, 1)


def _repeat(x, lanes: int):
    """[..., lanes] of an array whose 128 lanes are equal."""
    whole, rest = divmod(lanes, TPU_LANES)
    parts = [x] * whole + ([x[..., :rest]] if rest else [])
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
