"""One decoder for every supported family: what differs is a field of `ModelConfig`.

The decoder never touches a cache. Each layer hands its queries, keys and values to
`attend`, which stores K and V and returns the attention output: paged when serving,
dense when training. Layers of one form are stacked and run in one `lax.scan`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from paxkv.models.attend import Attend, Cache
from paxkv.models.cache_groups import CacheLayer, cache_layers, period_of
from paxkv.models.config import ModelConfig
from paxkv.models.experts import ExpertKernel
from paxkv.models.layer import Layer
from paxkv.models.lora import TokenAdapters
from paxkv.models.norms import make_norm, normed
from paxkv.models.rope import layer_rotations
from paxkv.models.stacks import Stack, layer_stacks


def _stacked_layers(config: ModelConfig, stack: Stack, rngs: nnx.Rngs) -> Layer:
    make = nnx.vmap(
        lambda rngs: Layer(config, has_experts=stack.has_experts, rngs=rngs),
        in_axes=0,
        out_axes=0,
        axis_size=stack.count,
    )
    return make(rngs.split(stack.count))


class Decoder(nnx.Module):
    """Token ids to hidden states to logits. Parameters of layers are stacked on axis 0."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        hidden = config.hidden_size
        self.embedding = nnx.Embed(config.vocab_size, hidden, rngs=rngs)
        if config.rope is None:
            self.position_embedding = nnx.Embed(config.max_context, hidden, rngs=rngs)
        for stack in layer_stacks(config):
            setattr(self, stack.name, _stacked_layers(config, stack, rngs))
        self.final_norm = make_norm(config, hidden, rngs)
        if not config.tied_embeddings:
            self.lm_head = nnx.Linear(hidden, config.vocab_size, use_bias=False, rngs=rngs)

    def embed(
        self, tokens: Int32[Array, "T"], positions: Int32[Array, "T"]
    ) -> Float[Array, "T hidden"]:
        """Scaled token embeddings, plus those of positions where they are a table."""
        # taken from the table itself: nnx.Embed casts to the dtype it was made with
        x = jnp.take(self.embedding.embedding[...], tokens, axis=0)
        # the scale is rounded to the activations' dtype, as the trained models saw it
        x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        if self.config.rope is None:
            table = self.position_embedding.embedding[...]
            x = x + jnp.take(table, positions, axis=0)
        return x

    def __call__(
        self,
        tokens: Int32[Array, "T"],
        positions: Int32[Array, "T"],
        cache: Cache,
        attend: Attend,
        adapters: TokenAdapters | None = None,
    ) -> tuple[Float[Array, "L T hidden"], Cache]:
        """Runs all layers; returns the residual stream after each of them.

        `cache` is carried through `attend`. A model that `lora.adapted_shapes` refuses
        takes no `adapters`.
        """
        (_, cache), residuals = self._run(
            tokens, positions, cache, attend, adapters, keep=True
        )
        return residuals, cache

    def last_hidden(
        self,
        tokens: Int32[Array, "T"],
        positions: Int32[Array, "T"],
        cache: Cache,
        attend: Attend,
        adapters: TokenAdapters | None = None,
    ) -> tuple[Float[Array, "T hidden"], Cache]:
        """As calling the decoder, but keeps only what `logits` takes."""
        (x, cache), _ = self._run(tokens, positions, cache, attend, adapters, keep=False)
        return x, cache

    def _run(
        self,
        tokens: Array,
        positions: Array,
        cache: Cache,
        attend: Attend,
        adapters: TokenAdapters | None,
        *,
        keep: bool,
    ) -> tuple[tuple[Array, Cache], Any]:
        """Last residual and cache; all residuals [L, T, hidden] too if `keep`."""
        carry, kept = (self.embed(tokens, positions), cache), []
        for stack in layer_stacks(self.config):
            carry, residuals = self._scan(
                stack, carry, positions, attend, adapters, keep=keep
            )
            kept.append(residuals)
        return carry, jnp.concatenate(kept) if keep else None

    def _scan(
        self,
        stack: Stack,
        carry: tuple[Array, Cache],
        positions: Array,
        attend: Attend,
        adapters: TokenAdapters | None,
        *,
        keep: bool,
    ) -> tuple[tuple[Array, Cache], Any]:
        """The layers of one stack, a period of cache groups at a time.

        Which pool a layer reads is known when the program is made, so layers of several
        groups are unrolled up to where their order repeats.
        """
        config = self.config
        layers = getattr(self, stack.name)
        graph, kernels, stacked = nnx.split(layers, ExpertKernel, ...)
        of_stack = slice(stack.first, stack.first + stack.count)
        places = cache_layers(config)[of_stack]
        period = period_of(tuple(place.group for place in places))
        per_layer = (
            np.asarray([place.index for place in places], np.int32),
            np.asarray(config.layer_windows, np.int32)[of_stack],
            jax.tree.map(lambda x: x[of_stack], layer_rotations(config)),
        )

        lora = None if adapters is None else adapters.weights

        def run_layer(carry, i, group: int):
            x, cache = carry
            state, own_lora, (index, window, rotation) = jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False),
                (stacked, lora, per_layer),
            )
            return nnx.merge(graph, kernels, state)(
                x,
                positions,
                rotation,
                i,
                lambda q, kv: attend(q, kv, cache, CacheLayer(group, index), window),
                None if adapters is None else adapters._replace(weights=own_lora),
            )

        def run_layers(carry, first, groups: tuple[int, ...]) -> tuple[Any, Any]:
            kept = []
            for offset, group in enumerate(groups):
                carry = run_layer(carry, first + offset, group)
                kept.append(carry[0])
            return carry, jnp.stack(kept) if keep else None

        groups = tuple(place.group for place in places[:period])
        whole = stack.count - stack.count % period
        carry, residuals = jax.lax.scan(
            partial(run_layers, groups=groups),
            carry,
            np.arange(0, whole, period, dtype=np.int32),
        )
        kept = [residuals.reshape(whole, *residuals.shape[2:])] if keep else []
        if whole < stack.count:
            carry, rest = run_layers(carry, jnp.int32(whole), groups[: stack.count - whole])
            kept.append(rest)
        return carry, jnp.concatenate(kept) if keep else None

    def logits(self, x: Float[Array, "T hidden"]) -> Float[Array, "T V"]:
        """Final norm and output head; float32 whatever the weights' dtype."""
        x = normed(self.final_norm, x)
        if self.config.tied_embeddings:
            table = self.embedding.embedding[...]
            out = jnp.einsum("th,vh->tv", x, table, preferred_element_type=jnp.float32)
        else:
            out = jnp.dot(x, self.lm_head.kernel[...], preferred_element_type=jnp.float32)
        if self.config.final_soft_cap is not None:
            cap = self.config.final_soft_cap
            out = cap * jnp.tanh(out / cap)
        return out
