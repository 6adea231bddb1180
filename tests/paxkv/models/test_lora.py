"""Adapters in the decoder: as merged weights, alone as in a batch, and no cost if none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paxkv.adapters import stack_pairs
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.models.loading import read_hf_config
from paxkv.models.lora import TokenAdapters, adapted_shapes, low_rank
from paxkv.models.parameters import build_decoder, decoder_params
from tests.paxkv.models.hf_fixtures import FOLDER, decoder_of
from tests.tiny_model import tiny_decoder

LENGTH = 24  # tokens of each sequence
FAMILIES = ("llama3", "gemma2", "opt", "qwen3")


def random_pairs(config: ModelConfig, seed: int, rank: int, names=None):
    """A and B of every projection, large enough to change the hidden states much."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, (size_in, size_out) in adapted_shapes(config).items():
        if names is None or name in names:
            a = rng.normal(size=(config.num_layers, size_in, rank)) / size_in**0.5
            b = rng.normal(size=(config.num_layers, rank, size_out)) / rank**0.5
            pairs[name] = (a.astype(np.float32), 0.3 * b.astype(np.float32))
    return pairs


@functools.partial(jax.jit, static_argnums=0)
def _hidden(graph, params, tokens, positions, owners, adapters):
    decoder = nnx.merge(graph, params)
    ahead = positions[:, None] < positions
    seen = ~ahead & (owners[:, None] == owners)

    def attend(q, kv, cache, layer, window):
        k, v = kv.expanded()
        grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])
        logits = jnp.einsum("tkgd,skd->kgts", grouped, k) * decoder.config.attention_scale
        weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)
        out = jnp.einsum("kgts,skd->tkgd", weights, v)
        return out.reshape(q.shape[0], q.shape[1], -1), cache

    with jax.default_matmul_precision("highest"):
        return decoder.last_hidden(tokens, positions, None, attend, adapters)[0]


def hidden_of(decoder, tokens, positions, owners, adapters=None):
    """Dense attention within each sequence of a batch that is laid end to end."""
    return np.asarray(_hidden(*nnx.split(decoder), tokens, positions, owners, adapters))


def assert_close(got, want) -> None:
    """To 1e-5 of the largest number: rounding, which differs between programs."""
    scale = np.abs(want).max()
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=1e-5)


def batch_of(config: ModelConfig, num_sequences: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, num_sequences * LENGTH, np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), num_sequences)
    owners = np.repeat(np.arange(num_sequences, dtype=np.int32), LENGTH)
    return tokens, positions, owners


def per_token(lora, ids) -> TokenAdapters:
    return TokenAdapters(lora, np.repeat(np.asarray(ids, np.int32), LENGTH))


def merged(decoder, pairs):
    """A decoder whose kernels are W + A B."""
    params = dict(decoder_params(decoder))
    for name, (a, b) in pairs.items():
        path = f"layers.{name}.kernel"
        params[path] = params[path] + np.einsum("lir,lro->lio", a, b)
    return build_decoder(decoder.config, params)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_gives_what_merged_weights_give(family):
    decoder = decoder_of(family)
    pairs = random_pairs(decoder.config, 1, rank=3)
    batch = batch_of(decoder.config, 2)
    lora = stack_pairs([pairs], decoder.config, "float32")
    assert set(lora) == set(adapted_shapes(decoder.config))
    got = hidden_of(decoder, *batch, per_token(lora, [1, 1]))
    want = hidden_of(merged(decoder, pairs), *batch)
    assert np.abs(want - hidden_of(decoder, *batch)).max() > 0.1
    assert_close(got, want)


def test_a_sequence_is_the_same_alone_and_among_other_adapters():
    decoder = decoder_of("llama3")
    config = decoder.config
    # of three ranks, one on a part of the projections
    pairs = [random_pairs(config, seed, rank=seed) for seed in (1, 2)]
    pairs.append(random_pairs(config, 3, rank=5, names=("k_proj", "v_proj")))
    lora = stack_pairs(pairs, config, "float32")
    tokens, positions, owners = batch_of(config, 4)
    mixed = hidden_of(decoder, tokens, positions, owners, per_token(lora, [2, 0, 3, 1]))
    for index, number in enumerate([2, 0, 3, 1]):
        own = slice(index * LENGTH, (index + 1) * LENGTH)
        # the same program, with other tokens and adapters around
        others = batch_of(config, 4, seed=9)[0]
        others[own] = tokens[own]
        ids = [(number + 1) % 4] * 4
        ids[index] = number
        among = hidden_of(decoder, others, positions, owners, per_token(lora, ids))
        np.testing.assert_array_equal(among[own], mixed[own])
        # and a batch of one
        short = (tokens[own], positions[own], owners[own])
        alone = hidden_of(decoder, *short, per_token(lora, [number]))
        assert_close(alone, mixed[own])
        # and an engine that has loaded only this adapter
        if number:
            only = stack_pairs([pairs[number - 1]], config, "float32")
            alone = hidden_of(decoder, *short, per_token(only, [1]))
            assert_close(alone, mixed[own])


def test_tokens_without_an_adapter_are_those_of_the_plain_model_to_the_bit():
    decoder = tiny_decoder()
    lora = stack_pairs([random_pairs(decoder.config, 1, rank=4)], decoder.config, "float32")
    batch = batch_of(decoder.config, 3)
    plain = hidden_of(decoder, *batch)
    np.testing.assert_array_equal(
        hidden_of(decoder, *batch, per_token(lora, [0, 0, 0])), plain
    )
    mixed = hidden_of(decoder, *batch, per_token(lora, [0, 1, 0]))
    np.testing.assert_array_equal(mixed[:LENGTH], plain[:LENGTH])
    np.testing.assert_array_equal(mixed[2 * LENGTH :], plain[2 * LENGTH :])
    assert np.abs(mixed - plain)[LENGTH : 2 * LENGTH].max() > 0.1


def test_an_adapter_that_overflows_spoils_no_other():
    config = tiny_decoder().config
    good = random_pairs(config, 1, rank=2)
    bad = {name: (a * np.float32(1e38), b) for name, (a, b) in good.items()}
    pair = jax.tree.map(
        lambda x: x[0], stack_pairs([bad, good], config, "float32")["q_proj"]
    )
    x = jnp.full((3, config.hidden_size), 10.0)
    added = np.asarray(low_rank(x, pair, jnp.asarray([1, 2, 0])))
    assert not np.isfinite(added[0]).all()
    a, b = good["q_proj"]
    np.testing.assert_allclose(added[1], np.asarray(x[1]) @ a[0] @ b[0], rtol=1e-5)
    np.testing.assert_array_equal(added[2], 0)


def test_layers_of_several_cache_groups_take_their_own_weights():
    config = tiny_decoder(windows=(0, 64, 64, 0, 64)).config
    decoder = Decoder(config, rngs=nnx.Rngs(0))
    pairs = random_pairs(decoder.config, 1, rank=3)
    batch = batch_of(decoder.config, 1)
    lora = stack_pairs([pairs], decoder.config, "float32")
    want = hidden_of(merged(decoder, pairs), *batch)
    got = hidden_of(decoder, *batch, per_token(lora, [1]))
    assert_close(got, want)


def test_low_precision_weights_keep_their_dtype():
    decoder = tiny_decoder()
    cast = {p: jnp.asarray(x, jnp.bfloat16) for p, x in decoder_params(decoder).items()}
    decoder = build_decoder(decoder.config, cast)
    lora = stack_pairs(
        [random_pairs(decoder.config, 1, rank=2)], decoder.config, "bfloat16"
    )
    batch = batch_of(decoder.config, 1)
    assert hidden_of(decoder, *batch, per_token(lora, [1])).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("family", "words"), [("deepseek_v2", "latent attention"), ("deepseek_v3", "latent")]
)
def test_models_without_plain_layers_are_refused_by_name(family, words):
    with pytest.raises(ValueError, match=words) as error:
        adapted_shapes(read_hf_config(FOLDER / family))
    assert family in str(error.value)
