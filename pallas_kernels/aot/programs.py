"""An op and a case, as a program over abstract arrays: a scan over layers, pool donated."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import move_blocks, paged_attention, write_kv
from pallas_kernels.aot.cases import CompileCase
from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import KVLayout, kv_layout

NUM_LAYERS = 8
MOVED_BLOCKS = 16
MIN_POOL_BYTES = 2**28  # XLA copies smaller pools without showing it
MAX_POOL_BYTES = 2**30 - 2**24  # twice that, Triton's 32-bit offsets can still reach
POOL_SHARE = 0.01  # of the pool, from which on an array may be a part of it
# A step holds its queries, its results and its new K and V twice beside the pool.
ACTIVATIONS_HELD = 4

ATTENTION_OPS = ("paged_attention", "ragged_paged_attention")
MOVE_OPS = ("copy_blocks", "gather_blocks", "scatter_blocks")
OPS = (*ATTENTION_OPS, "write_kv", *MOVE_OPS)
_OFFERED: dict[str, Mapping[str, str]] = {
    **dict.fromkeys(ATTENTION_OPS, paged_attention.IMPLEMENTATIONS),
    **dict.fromkeys(MOVE_OPS, move_blocks.IMPLEMENTATIONS),
    "write_kv": write_kv.IMPLEMENTATIONS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is compiled, and what of it is the pool."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]  # the pool is the first
    keywords: Mapping[str, Any] = field(default_factory=dict)  # static
    donates: bool = True
    is_jitted: bool = False
    pool: KVBlocks  # of one device
    padding_factor: float
    checks_all_arrays: bool = True  # else only those shaped like parts of the pool

    @property
    def pool_bytes(self) -> int:
        return nbytes(self.pool)

    @property
    def temp_limit(self) -> float:
        """Bytes from which on a temporary may be a copy of a part of the pool."""
        return POOL_SHARE * self.pool_bytes


def nbytes(tree: Any) -> int:
    """Of all arrays in a pytree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def is_offered(op: str, implementation: str) -> bool:
    """Whether there is such a function, in a module that this Python can import."""
    module = _OFFERED[op].get(implementation)
    if module is None or importlib.util.find_spec(module) is None:
        return False
    return hasattr(importlib.import_module(module), f"{op}_{implementation}")


def op_program(
    op: str,
    implementation: str,
    case: CompileCase,
    dtype: str,
    *,
    platform: str,
    device_kind: str | None,
    pool_multiple: int = 1,
) -> Program:
    """The program of one op.

    Args:
      pool_multiple: how many times the usual number of blocks, in pool and tables.
    """
    layout = kv_layout(case.kv_heads, case.head_dim, dtype, platform, case.value_dim)
    if op in ATTENTION_OPS:
        run, rest, activations = _attention(
            op, implementation, case, layout, device_kind, pool_multiple
        )
    elif op == "write_kv":
        run, rest, activations = _write(implementation, case, layout)
    else:
        run, rest, activations = _moves(op, implementation, case, layout)
    pool = _abstract_pool(case, layout, nbytes(activations), pool_multiple)
    return Program(
        run=run,
        arguments=(pool, *rest),
        donates=op != "gather_blocks",
        pool=pool,
        padding_factor=layout.padding_factor(case.block_size),
    )


def _abstract_pool(
    case: CompileCase, layout: KVLayout, activation_bytes: int, multiple: int
) -> KVBlocks:
    """Where possible so large that a step's other arrays are less than POOL_SHARE of it."""
    wanted = ACTIVATIONS_HELD * activation_bytes / POOL_SHARE
    pool_bytes = case.pool_bytes or min(max(wanted, MIN_POOL_BYTES), MAX_POOL_BYTES)
    block_bytes = NUM_LAYERS * layout.bytes_per_block(case.block_size)
    num_blocks = multiple * -(-int(pool_bytes) // block_bytes)
    return jax.eval_shape(
        lambda: make_cache(
            layout,
            num_layers=NUM_LAYERS,
            num_blocks=num_blocks,
            block_size=case.block_size,
        )
    )


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _activation_dtype(layout: KVLayout) -> Any:
    return jnp.float32 if layout.dtype == jnp.float32 else jnp.bfloat16


def _new_rows(case: CompileCase, layout: KVLayout, count: int) -> jax.ShapeDtypeStruct:
    shape = (count, layout.num_rows, case.head_dim)
    return jax.ShapeDtypeStruct(shape, _activation_dtype(layout))


def _layers():
    return jnp.arange(NUM_LAYERS, dtype=jnp.int32)


def _attention(
    op: str,
    implementation: str,
    case: CompileCase,
    layout: KVLayout,
    device_kind: str | None,
    table_multiple: int,
):
    """Eight layers that each write their tokens and then attend."""
    is_ragged = op == "ragged_paged_attention"
    attend = getattr(paged_attention, op)
    writer = implementation if is_offered("write_kv", implementation) else "xla"
    num_tokens = case.num_tokens if is_ragged else case.num_seqs
    options: dict[str, Any] = dict(
        scale=case.scale, soft_cap=case.soft_cap, implementation=implementation
    )
    if implementation != "reference":
        options["device_kind"] = device_kind

    def run(cache, q, new_kv, slots, sinks, *inputs):
        def layer_step(carry, layer):
            q, cache = carry
            cache = write_kv.write_kv(cache, new_kv, layer, slots, implementation=writer)
            window = None
            if case.window is not None:  # every other layer sees everything
                window = lax.rem(layer, jnp.int32(2)) * jnp.int32(case.window)
            out = attend(q, cache, layer, *inputs, window=window, sinks=sinks, **options)
            missing = q.shape[-1] - out.shape[-1]  # of latent attention
            return (q + jnp.pad(out, ((0, 0), (0, 0), (0, missing))), cache), None

        (q, cache), _ = lax.scan(layer_step, (q, cache), _layers())
        return q, cache

    q = jax.ShapeDtypeStruct(
        (num_tokens, case.num_heads, case.head_dim), _activation_dtype(layout)
    )
    new_kv = _new_rows(case, layout, num_tokens)
    sinks = None
    if case.has_sinks:
        sinks = jax.ShapeDtypeStruct((case.num_heads,), jnp.float32)
    inputs = [_int32(case.num_seqs, table_multiple * case.blocks_per_seq)]
    inputs.append(_int32(case.num_seqs))
    if is_ragged:
        inputs += [_int32(case.num_seqs + 1), _int32(1)]
    return run, (q, new_kv, _int32(num_tokens), sinks, *inputs), (q, new_kv)


def _write(implementation: str, case: CompileCase, layout: KVLayout):
    """Eight layers that each write the tokens of a step with prefill."""

    def run(cache, new_kv, slots):
        def layer_step(cache, layer):
            write = write_kv.write_kv
            return write(cache, new_kv, layer, slots, implementation=implementation), None

        return lax.scan(layer_step, cache, _layers())[0]

    new_kv = _new_rows(case, layout, case.num_tokens)
    return run, (new_kv, _int32(case.num_tokens)), new_kv


def _moves(op: str, implementation: str, case: CompileCase, layout: KVLayout):
    """One move of 16 blocks of all layers."""
    move = getattr(move_blocks, op)
    ids = _int32(MOVED_BLOCKS)
    moved = jax.eval_shape(
        lambda: make_cache(
            layout,
            num_layers=NUM_LAYERS,
            num_blocks=MOVED_BLOCKS,
            block_size=case.block_size,
        )
    )
    rest = {"copy_blocks": (ids, ids), "gather_blocks": (ids,)}.get(op, (ids, moved))

    def run(cache, *arguments):
        return move(cache, *arguments, implementation=implementation)

    return run, rest, moved
