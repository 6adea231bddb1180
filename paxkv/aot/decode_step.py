"""The decode step of a large model as an abstract program, on one chip or sharded."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_kernels.aot.programs import Program
from pallas_kernels.kv_blocks import KVBlocks, make_cache
from pallas_kernels.layout import KVLayout, kv_layout
from pallas_kernels.paged_attention import paged_attention
from pallas_kernels.write_kv import write_kv
from paxkv.attention import attention_options
from paxkv.device_executor import empty_plan
from paxkv.models.config import FULL_ATTENTION, ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.models.part_configs import RopeConfig
from paxkv.sampling_table import SamplingTable
from paxkv.sequence_tables import SequenceTables
from paxkv.step import StepOptions, step
from paxkv.step_inputs import StepShape, pack

LLAMA3_8B = ModelConfig(
    family="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_context=8192,
    layer_windows=(FULL_ATTENTION,) * 32,
    rope=RopeConfig(theta=500_000.0),
    attention_scale=128**-0.5,
)
# Of what fits into the memory of one chip; the sharded step is always whole.
STEP_CASES = {
    "llama3_8b": LLAMA3_8B,
    "llama3_8b_16_layers": replace(
        LLAMA3_8B, num_layers=16, layer_windows=LLAMA3_8B.layer_windows[:16]
    ),
}
DTYPE = "bfloat16"
NUM_SEQS, BLOCK_SIZE, MAX_CONTEXT = 32, 16, 4096
NUM_BLOCKS = 1536  # 3.2 GB on a single chip
SHARD_AXIS = "model"
# What each device holds of the weights; the rest is replicated.
_LAST_AXIS = ("q_proj", "k_proj", "v_proj", "up_proj", "gate_proj", "lm_head")
_INPUT_AXIS = ("o_proj", "down_proj")


def abstract(tree: Any) -> Any:
    """Shapes and dtypes only."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _model(config: ModelConfig) -> tuple[Any, Any]:
    """Graph and abstract parameters."""
    decoder = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(decoder)
    dtype = jnp.dtype(DTYPE)
    return graph, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), params)


def _pool(config: ModelConfig, layout: KVLayout, multiple: int) -> KVBlocks:
    return jax.eval_shape(
        lambda: make_cache(
            layout,
            num_layers=config.num_layers,
            num_blocks=multiple * NUM_BLOCKS,
            block_size=BLOCK_SIZE,
        )
    )


def _inputs() -> tuple[Any, Any, Any]:
    """Abstract step inputs and sampling inputs, and the sampling features."""
    tables = SequenceTables(
        max_num_seqs=NUM_SEQS,
        max_context=MAX_CONTEXT,
        blocks_per_sequence=(MAX_CONTEXT // BLOCK_SIZE,),
    )
    plan, shape = empty_plan(tables), StepShape(num_tokens=NUM_SEQS, num_seqs=NUM_SEQS)
    sampling = SamplingTable(
        max_num_seqs=NUM_SEQS,
        vocab_size=LLAMA3_8B.vocab_size,
        engine_seed=0,
        eos_token_ids=[],
    )
    values, features = sampling.pack(plan, NUM_SEQS)
    return abstract(pack(plan, shape, (BLOCK_SIZE,), False)), abstract(values), features


def decode_step(
    config: ModelConfig,
    implementation: str,
    platform: str,
    *,
    device_kind: str | None,
    pool_multiple: int = 1,
) -> Program:
    """The engine's own jitted step, of one token for each of 32 sequences."""
    layout = kv_layout(config.num_kv_heads, config.head_dim, DTYPE, platform)
    graph, params = _model(config)
    inputs, sampling, features = _inputs()
    pool = _pool(config, layout, pool_multiple)
    options = StepOptions(
        attention=attention_options(config, implementation, device_kind=device_kind),
        features=features,
        prompt_logprobs=None,
        matmul_precision="default",
    )
    return Program(
        run=step,
        arguments=(params, (pool,), inputs, sampling),
        keywords=dict(graph=graph, options=options),
        is_jitted=True,
        pool=pool,
        padding_factor=layout.padding_factor(BLOCK_SIZE),
        checks_all_arrays=False,
    )


def sharded_decode_step(
    implementation: str, platform: str, devices: list[Any], *, pool_multiple: int = 1
) -> Program:
    """The same model with heads, MLP and vocabulary spread over the devices.

    Each device holds the rows of its own kv heads, so that writing and attending need
    nothing from others.
    """
    mesh = Mesh(np.asarray(devices), (SHARD_AXIS,))
    of_shard = kv_layout(
        LLAMA3_8B.num_kv_heads // len(devices), LLAMA3_8B.head_dim, DTYPE, platform
    )
    pool = _pool(LLAMA3_8B, of_shard, pool_multiple)
    graph, params = _model(LLAMA3_8B)
    inputs, _, _ = _inputs()
    rows = P(None, None, None, SHARD_AXIS)
    *lead, shard_rows, padded_dim = pool.kv.shape
    kv = jax.ShapeDtypeStruct(
        (*lead, len(devices) * shard_rows, padded_dim),
        pool.kv.dtype,
        sharding=NamedSharding(mesh, rows),
    )
    everywhere = NamedSharding(mesh, P())

    def write_and_attend(q, new_kv, kv, layer, slots, table, context_lens):
        cache = KVBlocks(kv=kv, layout=of_shard)
        cache = write_kv(cache, new_kv, layer, slots, implementation=implementation)
        out = paged_attention(
            q,
            cache,
            layer,
            table,
            context_lens,
            scale=LLAMA3_8B.attention_scale,
            implementation=implementation,
            device_kind=devices[0].device_kind,
        )
        return out, cache.kv

    heads = P(None, SHARD_AXIS)
    on_shards = jax.shard_map(
        write_and_attend,
        mesh=mesh,
        in_specs=(heads, heads, rows, P(), P(), P(), P()),
        out_specs=(heads, rows),
        check_vma=False,  # of Pallas kernels jax cannot tell what varies over the mesh
    )

    def run(kv, params, inputs):
        def attend(q, heads, kv, layer, window):
            del window  # this model has none, and one group of layers
            tables = inputs.slots[0], inputs.block_tables[0], inputs.context_lens
            return on_shards(q, heads.rows(), kv, layer.index, *tables)

        decoder = nnx.merge(graph, params)
        hidden, kv = decoder.last_hidden(inputs.tokens, inputs.positions, kv, attend)
        logits = decoder.logits(hidden[inputs.last_tokens])
        return kv, jnp.argmax(logits, axis=-1)

    return Program(
        run=run,
        arguments=(
            kv,
            jax.tree.map_with_path(lambda path, x: _placed(mesh, path, x), params),
            jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
                inputs,
            ),
        ),
        pool=pool,
        padding_factor=of_shard.padding_factor(BLOCK_SIZE),
        checks_all_arrays=False,
    )


def _placed(mesh: Mesh, path: Any, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """A parameter with its share per device."""
    names = {str(getattr(key, "key", getattr(key, "name", key))) for key in path}
    axes: list[str | None] = [None] * len(x.shape)
    if names & set(_LAST_AXIS):
        axes[-1] = SHARD_AXIS
    elif names & set(_INPUT_AXIS):
        axes[-2] = SHARD_AXIS
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P(*axes)))
