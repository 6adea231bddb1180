"""Training of a small decoder on associative recall: attention, losses, one step."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int32

from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.recall import NOWHERE, RecallBatch

Params = dict[str, Any]
ATTENTION_WEIGHT = 0.2
HEADS = 4  # query heads that `head_targets` plans for


def dense_attend(
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    cache: tuple[Array, Array, Array],
    layer: Int32[Array, ""],
    window: Int32[Array, ""],
    *,
    scale: float,
) -> tuple[Float[Array, "T H D"], tuple[Array, Array, Array]]:
    """Causal attention over the whole sequence in order of index.

    `cache` is no cache here: it carries which key each head should look at, the weight
    of that wish, and the summed cross-entropy of the attention weights so far.
    """
    size, heads, head_dim = q.shape
    q = q.reshape(size, k.shape[1], -1, head_dim) * scale
    logits = jnp.einsum("tkgd,skd->kgts", q, k)
    seen = jnp.tril(jnp.ones((size, size), bool))
    logits = jax.nn.log_softmax(jnp.where(seen, logits, -1e30), axis=-1)
    out = jnp.einsum("kgts,skd->tkgd", jnp.exp(logits), v)

    targets, shares, loss = cache  # [L, H, T] twice
    found = jnp.take_along_axis(
        logits.reshape(heads, size, size), targets[layer][..., None], axis=-1
    )
    loss = loss - (found[..., 0] * shares[layer]).sum()
    return out.reshape(size, heads, head_dim), (targets, shares, loss)


def head_targets(batch, num_layers):
    """Which key each head should look at, [L, B, H, T], and the weight of that wish."""
    size = batch["tokens"].shape[1]
    at = jnp.arange(size)
    nowhere = jnp.full_like(batch["own_pair"], NOWHERE)
    positions = batch["positions"]

    def back(offset):
        joined = jnp.roll(positions, offset, axis=1) == positions - offset
        return jnp.where(joined & (at >= offset) & (batch["tokens"] != 0), at - offset, NOWHERE)

    own, last, asked = batch["own_pair"], batch["last_pair"], batch["next_query"]
    plan = [
        [back(1), back(2), back(3), back(4)],
        [own, nowhere, last, nowhere],
        [asked, nowhere, asked, nowhere],
    ]
    plan += [[nowhere] * HEADS] * (num_layers - len(plan))
    targets = jnp.stack([jnp.stack(heads, axis=1) for heads in plan])
    wanted = targets != NOWHERE
    counts = wanted.sum(axis=(1, 3), keepdims=True)
    return jnp.maximum(targets, 0), wanted / jnp.maximum(counts, 1)


def init_params(config: ModelConfig, seed: int) -> tuple[Any, Params]:
    """Returns the decoder's graph and its parameters as a plain dict."""
    graph, state = nnx.split(Decoder(config, rngs=nnx.Rngs(seed)))
    return graph, nnx.to_pure_dict(state)


def rebuild(graph: Any, decoder_params: Params) -> Decoder:
    """Inverse of splitting a decoder into its graph and a plain dict."""
    state = nnx.state(nnx.eval_shape(lambda: nnx.merge(graph, decoder_params)))
    nnx.replace_by_pure_dict(state, decoder_params)
    return nnx.merge(graph, state)


def forward(decoder, tokens, positions, targets, shares):
    """Last residuals and the summed cross-entropy of the attention weights."""
    attend = partial(dense_attend, scale=decoder.config.attention_scale)

    def one(tokens, positions, targets, shares):
        cache = (targets, shares, jnp.zeros(()))
        after, (_, _, loss) = decoder(tokens, positions, cache, attend)
        return decoder.logits(after[-1]), loss

    return jax.vmap(one, in_axes=(0, 0, 1, 1))(tokens, positions, targets, shares)


def losses(graph: Any, params: Params, batch: dict[str, Array]) -> dict[str, Array]:
    """Mean cross-entropies of the answer and of the attention weights, and their sum."""
    decoder = rebuild(graph, params)
    targets, shares = head_targets(batch, decoder.config.num_layers)
    logits, attention = forward(
        decoder, batch["tokens"], batch["positions"], targets, shares
    )
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    answer = (loss * batch["is_answer"]).sum() / batch["is_answer"].sum()
    attention = attention.sum()
    return {"total": answer + ATTENTION_WEIGHT * attention, "answer": answer, "attention": attention}


def make_step(graph: Any, optimizer: optax.GradientTransformation) -> Callable:
    """Returns `step(params, opt_state, batch)`; both are donated."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, opt_state: Any, batch: dict[str, Array]):
        def loss_of(params: Params):
            parts = losses(graph, params, batch)
            return parts["total"], parts

        grads, parts = jax.grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, parts

    return step


def make_predict(graph: Any) -> Callable:
    """Returns `predict(params, tokens, positions)`: the likeliest next tokens."""

    @jax.jit
    def predict(params: Params, tokens: Array, positions: Array) -> Array:
        decoder = rebuild(graph, params)
        config = decoder.config
        shape = (config.num_layers, tokens.shape[0], config.num_heads, tokens.shape[1])
        nothing = jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
        return jnp.argmax(forward(decoder, tokens, positions, *nothing)[0], axis=-1)

    return predict


def arrays(batch: RecallBatch) -> dict[str, np.ndarray]:
    """What a step takes of a batch."""
    return {field.name: getattr(batch, field.name) for field in fields(batch) if field.name != "num_queries"}
