"""A mixture of experts in place of an MLP (DeepSeekMoE; DeepSeek-V3, §2.1.2).

Each (token, expert) pair is a row. Rows are grouped by expert into tiles of equal size,
so that the work follows the number of tokens, and of all experts only those that some
token chose are read. A row's result depends on its own token alone.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int32

from paxkv.models.config import ExpertsConfig, ModelConfig
from paxkv.models.mlp import mlp

INIT = nnx.initializers.lecun_normal(batch_axis=0)
MIN_TILE_ROWS = 8
MAX_TILE_ROWS = 128


class ExpertKernel(nnx.Param):
    """[E, in, out]; with a stack of layers [L, E, in, out].

    A scan over layers that took them apart would copy all experts of each layer, so they
    stay whole, and the tile of an expert slices what it reads.
    """


class Experts(nnx.Module):
    """Routed experts and the shared ones."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        assert config.experts is not None
        self.sizes = sizes = config.experts
        self.activation = config.activation
        hidden, inner = config.hidden_size, sizes.intermediate_size
        shared = sizes.num_shared * inner

        def kernel(size_in: int, size_out: int) -> ExpertKernel:
            shape = (sizes.num_experts, size_in, size_out)
            return ExpertKernel(INIT(rngs.params(), shape, jnp.float32))

        def linear(size_in: int, size_out: int, use_bias: bool = False) -> nnx.Linear:
            return nnx.Linear(size_in, size_out, use_bias=use_bias, rngs=rngs)

        # its bias steers the choice of experts only: see `route`
        self.router = linear(hidden, sizes.num_experts, sizes.scoring == "sigmoid")
        self.gate_proj = kernel(hidden, inner)
        self.up_proj = kernel(hidden, inner)
        self.down_proj = kernel(inner, hidden)
        self.shared_gate_proj = linear(hidden, shared)
        self.shared_up_proj = linear(hidden, shared)
        self.shared_down_proj = linear(shared, hidden)

    def __call__(
        self, x: Float[Array, "T hidden"], index: Int32[Array, ""] | int
    ) -> Float[Array, "T hidden"]:
        """`index` is that of the layer in its stack, whose kernels the module holds."""
        gate, up, down = self.gate_proj[...], self.up_proj[...], self.down_proj[...]
        bias = None if self.router.bias is None else self.router.bias[...]
        experts, weights = route(x, self.router.kernel[...], bias, self.sizes)

        def run_expert(rows: Array, expert: Array) -> Array:
            return mlp(
                rows,
                self.activation,
                gate=lambda x: x @ gate[index, expert],
                up=lambda x: x @ up[index, expert],
                down=lambda x: x @ down[index, expert],
            )

        routed = run_in_tiles(run_expert, x, experts, self.sizes.num_experts)
        shared = mlp(
            x,
            self.activation,
            gate=self.shared_gate_proj,
            up=self.shared_up_proj,
            down=self.shared_down_proj,
        )
        return jnp.einsum("tah,ta->th", routed, weights.astype(x.dtype)) + shared


def route(
    x: Float[Array, "T hidden"],
    kernel: Float[Array, "hidden E"],
    bias: Float[Array, "E"] | None,
    sizes: ExpertsConfig,
) -> tuple[Int32[Array, "T active"], Float[Array, "T active"]]:
    """The experts that each token takes and the weights of their results; in float32,
    since a rounded score can choose another expert."""
    logits = jnp.dot(
        x.astype(jnp.float32),
        kernel.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    if sizes.scoring == "softmax":
        scores = jax.nn.softmax(logits, axis=-1)
    else:
        scores = jax.nn.sigmoid(logits)
    merit = scores if bias is None else scores + bias
    grouped = merit.reshape(x.shape[0], sizes.num_groups, -1)
    if sizes.num_active_groups < sizes.num_groups:
        best, _ = lax.top_k(grouped, sizes.group_votes)
        _, groups = lax.top_k(best.sum(axis=-1), sizes.num_active_groups)
        is_open = jax.nn.one_hot(groups, sizes.num_groups, dtype=bool).any(axis=1)
        grouped = jnp.where(is_open[..., None], grouped, -jnp.inf)
    _, experts = lax.top_k(grouped.reshape(merit.shape), sizes.num_active)
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if sizes.normalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
    return experts, weights * sizes.scale


def run_in_tiles(
    run_expert, x: Float[Array, "T hidden"], experts: Int32[Array, "T active"], count: int
) -> Float[Array, "T active hidden"]:
    """`run_expert(rows, expert)` of every pair of a token and one of its experts.

    Args:
      count: of experts.
    """
    num_tokens, num_active = experts.shape
    num_rows = num_tokens * num_active
    size = min(max(num_rows // count, MIN_TILE_ROWS), MAX_TILE_ROWS)
    # every expert but its last tile fills tiles
    num_tiles = num_rows // size + min(count, num_rows)
    place, expert_of_tile, num_used = _tiles(experts.reshape(-1), count, size, num_tiles)
    token = jnp.arange(num_rows, dtype=jnp.int32) // num_active
    source = jnp.full(num_tiles * size, num_tokens, jnp.int32).at[place].set(token)

    def run_tile(_, tile):
        sources, expert, index = tile
        rows = x.at[sources].get(mode="fill", fill_value=0)  # a tile may have free rows
        out = lax.cond(index < num_used, run_expert, lambda rows, _: rows, rows, expert)
        return None, out

    tiles = (
        source.reshape(num_tiles, size),
        expert_of_tile,
        jnp.arange(num_tiles, dtype=jnp.int32),
    )
    _, results = lax.scan(run_tile, None, tiles)
    return results.reshape(num_tiles * size, -1)[place].reshape(num_tokens, num_active, -1)


def _tiles(
    expert: Int32[Array, "rows"], count: int, size: int, num_tiles: int
) -> tuple[Int32[Array, "rows"], Int32[Array, "tiles"], Int32[Array, ""]]:
    """Place of each row in the tiles laid end to end, each tile's expert, tiles used."""
    order = jnp.argsort(expert, stable=True)
    sizes = jnp.zeros(count, jnp.int32).at[expert].add(1)
    tile_ends = jnp.cumsum(lax.div(sizes + (size - 1), jnp.int32(size)), dtype=jnp.int32)
    # of an expert's first row, among rows in order and among places
    first_row = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    first_place = jnp.concatenate([jnp.zeros(1, jnp.int32), tile_ends[:-1]]) * size
    of_sorted = expert[order]
    rank = jnp.arange(expert.shape[0], dtype=jnp.int32) - first_row[of_sorted]
    place = jnp.zeros_like(expert).at[order].set(first_place[of_sorted] + rank)
    tile = jnp.arange(num_tiles, dtype=jnp.int32)
    owner = jnp.searchsorted(tile_ends, tile, side="right").astype(jnp.int32)
    return place, jnp.minimum(owner, count - 1), tile_ends[-1]
