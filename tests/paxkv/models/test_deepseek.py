"""Latent attention and stacks of unlike layers, beyond what the fixtures compare."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paxkv.cache import plan_cache
from paxkv.config import CacheConfig
from paxkv.models.attend import Latent
from paxkv.models.decoder import Decoder
from paxkv.models.loading import load_decoder
from paxkv.models.parameters import decoder_params
from paxkv.models.stacks import layer_stacks
from paxkv.sampling_params import SamplingParams
from tests.dense import logits_of
from tests.harness import BASE, SMALLEST_GAP, Work, serve, smallest_gap
from tests.paxkv.models.hf_fixtures import decoder_of, expected_of
from tests.paxkv.models.test_weights import assert_same, copy_of, edit

RANK, HEADS, NOPE, ROPE, VALUE = 16, 3, 8, 4, 6
LENGTHS = ((1, 6), (16, 5), (33, 6), (70, 4), (5, 9))  # prompt, output


def random_latent(num_tokens: int) -> tuple[Latent, jax.Array]:
    """Rows and queries."""
    keys = jax.random.split(jax.random.key(0), 4)
    latent = Latent(
        row=jax.random.normal(keys[0], (num_tokens, RANK + ROPE)),
        up_k=jax.random.normal(keys[1], (RANK, HEADS, NOPE)),
        up_v=jax.random.normal(keys[2], (RANK, HEADS, VALUE)),
    )
    return latent, jax.random.normal(keys[3], (num_tokens, HEADS, NOPE + ROPE))


def test_absorbed_and_expanded_projections_are_the_same_attention():
    latent, q = random_latent(7)
    k, v = latent.expanded()
    assert (k.shape, v.shape) == ((7, HEADS, NOPE + ROPE), (7, HEADS, VALUE))
    logits = jnp.einsum("thd,shd->hts", q, k)
    absorbed = jnp.einsum("thd,sd->hts", latent.absorb(q), latent.row)
    np.testing.assert_allclose(absorbed, logits, atol=2e-5)
    weights = jax.nn.softmax(logits, axis=-1)
    averages = jnp.einsum("hts,sr->thr", weights, latent.row[:, :RANK])
    expected = jnp.einsum("hts,shd->thd", weights, v)
    np.testing.assert_allclose(latent.values(averages), expected, atol=2e-5)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v2_lite", "gemma3"])
def test_stacks_are_all_layers_in_order(name):
    decoder = decoder_of(name)
    stacks = layer_stacks(decoder.config)
    layers = [layer for s in stacks for layer in range(s.first, s.first + s.count)]
    assert layers == list(range(decoder.config.num_layers))
    params = decoder_params(decoder)
    for stack in stacks:
        of_stack = [p for p in params if p.startswith(f"{stack.name}.")]
        assert {params[path].shape[0] for path in of_stack} == {stack.count}
        assert any(".experts." in path for path in of_stack) == stack.has_experts


def workload() -> tuple[Work, ...]:
    rng = np.random.default_rng(3)
    return tuple(
        Work(
            prompt_ids=tuple(rng.integers(3, 96, num_prompt).tolist()),
            sampling=SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True),
        )
        for num_prompt, most in LENGTHS
    )


@pytest.fixture(scope="module")
def base_tokens():
    return serve(BASE, workload(), decoder_of("deepseek_v3"))


def test_tokens_of_the_base_case_are_those_of_dense_attention(base_tokens):
    for index, work in enumerate(workload()):
        tokens = base_tokens[index, 0]
        gap = smallest_gap(
            decoder_of("deepseek_v3"), work, tokens, request_id=index, seed=0
        )
        print(f"request {index}: smallest top-2 gap {gap:.4f}")
        assert gap > SMALLEST_GAP


@pytest.mark.parametrize(
    "case",
    [
        *[replace(BASE, block_size=size) for size in (1, 7, 64)],
        *[replace(BASE, chunk=chunk) for chunk in (1, 7, 33)],
        replace(BASE, block_size=7, shuffle_seed=1, poison=True, preempt_every=3),
        replace(BASE, block_size=3, chunk=16, implementation="reference"),
    ],
    ids=str,
)
def test_the_same_tokens_however_they_are_served(case, base_tokens):
    assert serve(case, workload(), decoder_of("deepseek_v3")) == base_tokens


def test_a_pool_holds_one_row_per_token():
    config = decoder_of("deepseek_v3").config
    plan = plan_cache(
        config,
        CacheConfig(block_size=4, num_blocks=3),
        max_num_seqs=1,
        max_context=8,
        max_new_tokens=64,
        platform="cpu",
        free_bytes=2**30,
    )
    assert plan.bytes_per_token == config.num_layers * (16 + 8) * 4
    (blocks,) = jax.eval_shape(plan.allocate)
    assert blocks.kv.shape == (config.num_layers, 3, 4, 16 + 8)


def test_an_expert_that_is_missing_or_misshapen_is_named(tmp_path):
    folder = copy_of("deepseek_v3", tmp_path)

    def spoil(tensors):
        del tensors["model.layers.2.mlp.experts.5.up_proj.weight"]
        tensors["model.layers.1.mlp.experts.0.down_proj.weight"] = np.zeros((32, 9), "f4")
        tensors["model.layers.0.mlp.experts.0.down_proj.weight"] = np.zeros((32, 8), "f4")

    edit(folder, spoil)
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    for words in (
        "missing: layers.2.mlp.experts.5.up_proj.weight",
        "layers.1.mlp.experts.0.down_proj.weight for layers.experts.down_proj has "
        "shape (32, 9), needs (8, 32)",
        "extra: layers.0.mlp.experts.0.down_proj.weight",
    ):
        assert words in str(error.value)


def test_the_layer_that_predicts_more_tokens_is_no_extra(tmp_path):
    folder = copy_of("deepseek_v3", tmp_path)
    more = {"model.layers.3.eh_proj.weight": np.ones((32, 64), np.float32)}
    edit(folder, lambda tensors: tensors.update(more))
    assert_same(folder, "deepseek_v3")


def test_gradients_of_the_dense_path_reach_every_parameter():
    graph, state = nnx.split(decoder_of("deepseek_v3"))
    tokens = jnp.asarray(expected_of("deepseek_v3").all_ids, jnp.int32)

    def loss(state):
        logits = logits_of(graph, state, tokens)[:-1]
        return -jax.nn.log_softmax(logits)[jnp.arange(len(logits)), tokens[1:]].mean()

    grads = nnx.to_pure_dict(jax.grad(loss)(state))
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        name = jax.tree_util.keystr(path)
        is_choice_only = "router" in name and "bias" in name
        assert np.isfinite(grad).all(), name
        assert bool(np.abs(grad).max() > 0) != is_choice_only, name


def test_no_layer_of_experts_is_copied():
    """Only the expert of a tile is sliced out of the stack of all layers' experts."""
    small = decoder_of("deepseek_v3").config
    experts = replace(small.experts, num_experts=64, intermediate_size=512)
    config = replace(small, experts=experts)
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))

    def attend(q, kv, cache, *_):
        return q[..., : kv.up_v.shape[-1]], cache

    @jax.jit
    def last_hidden(state, tokens):
        return nnx.merge(graph, state).last_hidden(tokens, tokens, None, attend)

    tokens = jax.ShapeDtypeStruct((4,), jnp.int32)
    memory = last_hidden.lower(state, tokens).compile().memory_analysis()
    bytes_per_layer = 64 * 3 * 512 * config.hidden_size * 4
    assert memory.argument_size_in_bytes > 2 * bytes_per_layer
    assert memory.temp_size_in_bytes < bytes_per_layer / 8
