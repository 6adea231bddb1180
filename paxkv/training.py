"""Training of a small decoder on associative recall: attention, losses, one step."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int32
from optax.contrib import MuonDimensionNumbers

from paxkv.models.attend import Heads, Latent
from paxkv.models.cache_groups import CacheLayer
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.models.rope import inverse_frequencies
from paxkv.recall import NOWHERE, RecallBatch

Params = dict[str, Any]
Batch = dict[str, Array]  # the fields of `RecallBatch`
NUM_HEADS = 4  # `head_targets` is written for them
ATTENTION_WEIGHT = 0.5  # of one head's loss, beside the answer's
ADAM_SHARE = 0.25  # of Muon's learning rate
SHARED_PART = 8 / 128**0.5  # of a token's embedding, beside 1 of its own
SHARPNESS = 2.0  # of the heads that start out looking back
NUM_FAST = 6  # pairs of RoPE that tell near distances apart


class Wishes(NamedTuple):
    """Stands where `attend` carries a cache: what training wants of the attention."""

    targets: Int32[Array, "*batch L H T"]  # index of the key a head should look at
    shares: Float[Array, "*batch L H T"]  # weight in the loss of that head; 0 = no wish
    loss: Float[Array, "*batch L H"]  # cross-entropy of the attention weights so far


def dense_attend(
    q: Float[Array, "T H D"],
    kv: Heads | Latent,
    wishes: Wishes,
    layer: CacheLayer,
    window: Int32[Array, ""],
    *,
    scale: float,
) -> tuple[Float[Array, "T H Dv"], Wishes]:
    """Causal attention over the whole sequence, in order of index; windows are ignored.

    A model without windows has one cache group, where a layer's index is that of the model.
    """
    del window
    k, v = kv.expanded()
    size, heads, head_dim = q.shape
    q = q.reshape(size, k.shape[1], -1, head_dim) * scale
    logits = jnp.einsum("tkgd,skd->kgts", q, k)
    seen = jnp.tril(jnp.ones((size, size), bool))
    logits = jax.nn.log_softmax(jnp.where(seen, logits, -1e30), axis=-1)
    out = jnp.einsum("kgts,skd->tkgd", jnp.exp(logits), v)

    targets = wishes.targets[layer.index][..., None]
    found = jnp.take_along_axis(logits.reshape(heads, size, size), targets, axis=-1)
    missed = -(found[..., 0] * wishes.shares[layer.index]).sum(axis=-1)
    loss = wishes.loss.at[layer.index].add(missed)
    return out.reshape(size, heads, v.shape[-1]), wishes._replace(loss=loss)


def head_targets(batch: Batch, num_layers: int) -> Wishes:
    """The circuit that answers, as a wish for each head.

    The first layer brings to each token the four before it. In the second, a queried
    key finds its pair and that of the key asked before. In the third, the value written
    last finds the query that comes after its own, which knows the next value.
    """
    tokens, positions = batch["tokens"], batch["positions"]
    at = jnp.arange(tokens.shape[1])
    none = jnp.full_like(tokens, NOWHERE)

    def back(offset: int) -> Int32[Array, "batch T"]:
        joined = jnp.roll(positions, offset, axis=1) == positions - offset
        return jnp.where(joined & (at >= offset) & (tokens != 0), at - offset, NOWHERE)

    own, last, query = batch["own_pair"], batch["last_pair"], batch["next_query"]
    plan = [
        [back(1), back(2), back(3), back(4)],
        [own, none, last, none],
        [query, none, query, none],
    ]
    plan += [[none] * NUM_HEADS] * (num_layers - len(plan))
    targets = jnp.stack([jnp.stack(heads, axis=1) for heads in plan], axis=1)
    wanted = targets != NOWHERE
    counts = jnp.maximum(wanted.sum(axis=(0, 3), keepdims=True), 1)
    loss = jnp.zeros(targets.shape[:3])
    return Wishes(jnp.maximum(targets, 0), wanted / counts, loss)


def init_params(config: ModelConfig, seed: int) -> tuple[Any, Params]:
    """Returns the decoder's graph and its parameters as a plain dict.

    Attention by distance is slow to learn and all else builds on it, so the first layer
    starts with it: all embeddings share one direction, from which its heads make keys
    and queries that RoPE lines up one token back, two, and so on.
    """
    assert config.rope is not None, "RoPE tells the distances"
    assert config.latent is None and config.experts is None, "q_proj, k_proj, one MLP"
    assert config.num_heads == NUM_HEADS, "`head_targets` names four heads"
    graph, state = nnx.split(Decoder(config, rngs=nnx.Rngs(seed)))
    params = nnx.to_pure_dict(state)
    layers = params["layers"]
    shared = np.random.default_rng(seed).normal(size=config.hidden_size)
    shared /= np.linalg.norm(shared)
    tokens = np.array(params["embedding"]["embedding"])
    tokens -= np.outer(tokens @ shared, shared)
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    # as long as what the layers add to them
    tokens = config.hidden_size**0.5 * (tokens + SHARED_PART * shared)
    params["embedding"]["embedding"] = jnp.asarray(tokens, jnp.float32)
    layers["o_proj"]["kernel"] = layers["o_proj"]["kernel"].at[1:].multiply(0.5)
    layers["down_proj"]["kernel"] = layers["down_proj"]["kernel"] * 0.5

    fast = inverse_frequencies(config.rope, config.head_dim)[:NUM_FAST]
    for name, heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
        back = np.arange(1, heads + 1) if name == "q_proj" else np.zeros(heads)
        angles = -back[:, None] * fast
        turned = np.zeros((heads, 2, config.head_dim // 2))
        turned[:, 0, :NUM_FAST], turned[:, 1, :NUM_FAST] = np.cos(angles), np.sin(angles)
        kernel = np.array(layers[name]["kernel"])
        kernel[0] = 0.02 * kernel[0] + SHARPNESS * np.outer(shared, turned)
        layers[name]["kernel"] = jnp.asarray(kernel)
    return graph, params


def make_optimizer(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    """Muon for the matrices of the layers, Adam for the rest; cosine decay to 3 %."""

    def schedule(peak: float) -> optax.Schedule:
        warmup = min(30, num_steps // 2)
        return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, num_steps, 0.03 * peak)

    def matrices(params: optax.Params) -> Any:
        def dims(path, x):
            is_matrix = x.ndim == 3 and path[0].key == "layers"
            return MuonDimensionNumbers(1, 2) if is_matrix else None

        return jax.tree_util.tree_map_with_path(dims, params)

    return optax.contrib.muon(
        schedule(learning_rate),
        adam_learning_rate=schedule(ADAM_SHARE * learning_rate),
        adam_b2=0.98,
        weight_decay=1e-3,
        muon_weight_dimension_numbers=matrices,
    )


def rebuild(graph: Any, params: Params) -> Decoder:
    """The decoder of a graph and a plain dict of its parameters."""
    state = nnx.state(nnx.eval_shape(lambda: nnx.merge(graph, params)))
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)


def forward(
    decoder: Decoder,
    tokens: Int32[Array, "batch T"],
    positions: Int32[Array, "batch T"],
    wishes: Wishes,
) -> tuple[Float[Array, "batch T V"], Float[Array, "batch L H"]]:
    """Logits, and the cross-entropy of the attention weights with the wishes."""
    attend = partial(dense_attend, scale=decoder.config.attention_scale)

    def one(tokens: Array, positions: Array, wishes: Wishes) -> tuple[Array, Array]:
        residuals, wishes = decoder(tokens, positions, wishes, attend)
        return decoder.logits(residuals[-1]), wishes.loss

    return jax.vmap(one)(tokens, positions, wishes)


def losses(graph: Any, params: Params, batch: Batch) -> dict[str, Array]:
    """Mean cross-entropies of answers and of attention weights, and their sum `total`."""
    decoder = rebuild(graph, params)
    wishes = head_targets(batch, decoder.config.num_layers)
    logits, missed = forward(decoder, batch["tokens"], batch["positions"], wishes)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    answer = (loss * batch["is_answer"]).sum() / batch["is_answer"].sum()
    attention = missed.sum(axis=0)  # [L, H]
    total = answer + ATTENTION_WEIGHT * attention.sum()
    return {"total": total, "answer": answer, "attention": attention}


def make_step(graph: Any, optimizer: optax.GradientTransformation) -> Callable:
    """Returns `step(params, opt_state, batch)`; the first two are donated."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, opt_state: Any, batch: Batch) -> tuple[Params, Any, Any]:
        def loss_of(params: Params) -> tuple[Array, dict[str, Array]]:
            parts = losses(graph, params, batch)
            return parts["total"], parts

        grads, parts = jax.grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = cast(Params, optax.apply_updates(params, updates))
        return params, opt_state, parts

    return step


def make_predict(graph: Any) -> Callable:
    """Returns `predict(params, tokens, positions)`: the likeliest next tokens."""

    @jax.jit
    def predict(
        params: Params, tokens: Int32[Array, "batch T"], positions: Int32[Array, "batch T"]
    ) -> Int32[Array, "batch T"]:
        decoder = rebuild(graph, params)
        batch, size = tokens.shape
        shape = (batch, decoder.config.num_layers, decoder.config.num_heads, size)
        no_wishes = Wishes(
            jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.zeros(shape[:3])
        )
        logits, _ = forward(decoder, tokens, positions, no_wishes)
        return jnp.argmax(logits, axis=-1)

    return predict


def arrays(batch: RecallBatch) -> dict[str, np.ndarray]:
    """The fields of a batch by name."""
    return {field.name: getattr(batch, field.name) for field in fields(batch)}
