"""Every family against transformers: the same logits and the same greedy tokens."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxkv.building import build_engine
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.models.config import ExpertsConfig, RopeConfig
from paxkv.models.loading import load_decoder
from paxkv.models.parameters import build_decoder, decoder_params
from paxkv.sampling_params import SamplingParams
from tests.dense import dense_logits
from tests.paxkv.models.hf_fixtures import (
    FOLDER,
    NAMES,
    TOLERANCE,
    decoder_of,
    expected_of,
)

SMALLEST_GAP = 1e-3  # below it, rounding could change a greedy token
PLAIN = RopeConfig(theta=1e4)
DEEPSEEK_ROPE = decoder_of("deepseek_v2").config.rope
YARN = decoder_of("llama_yarn").config.rope


def routing(name: str, **changes) -> ExpertsConfig:
    """The experts of a fixture, chosen in another way."""
    return replace(decoder_of(name).config.experts, **changes)


def test_fixtures_are_small_and_decisive():
    assert {folder.name for folder in FOLDER.iterdir()} == set(NAMES)
    sizes = {
        name: sum(file.stat().st_size for file in (FOLDER / name).iterdir())
        for name in NAMES
    }
    assert max(sizes.values()) <= 200_000
    for name in NAMES:
        expected, windows = expected_of(name), decoder_of(name).config.layer_windows
        print(f"{name}: smallest gap {expected.min_top2_gap:.4f}")
        assert expected.min_top2_gap > SMALLEST_GAP
        assert len(expected.prompt_ids) > max(windows)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_with_dense_attention(name):
    expected = expected_of(name)
    logits = dense_logits(decoder_of(name), expected.all_ids)
    got = logits[list(expected.positions)]
    np.testing.assert_allclose(got, expected.logits, atol=TOLERANCE, rtol=0)
    greedy = logits[len(expected.prompt_ids) - 1 : -1].argmax(axis=-1)
    assert tuple(greedy) == expected.greedy_ids


@pytest.mark.parametrize(
    ("name", "implementation", "latent_prefill"),
    [
        (name, implementation, "absorbed")
        for name in NAMES
        for implementation in ("xla", "cpu")
    ]
    + [(name, "xla", "expanded") for name in NAMES if name.startswith("deepseek")],
)
def test_prompt_and_decode_through_the_paged_engine(name, implementation, latent_prefill):
    """Chunks of a prompt and then single tokens, in blocks that no chunk size divides."""
    if implementation == "cpu":
        pytest.importorskip("numba", reason="needs the extra cpu")
    expected = expected_of(name)
    config = EngineConfig(
        model=name,
        latent_prefill=latent_prefill,
        implementation=implementation,
        check_invariants=True,
        cache=CacheConfig(block_size=5, num_blocks=20, shuffle_seed=1),
        scheduler=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=17),
    )
    engine, _ = build_engine(config, decoder_of(name))
    engine.add(
        expected.prompt_ids,
        SamplingParams(
            temperature=0.0,
            max_tokens=len(expected.greedy_ids),
            ignore_eos=True,
            logprobs=20,
            prompt_logprobs=20,
        ),
    )
    updates = []
    while engine.has_unfinished:
        updates += engine.step().updates
    tokens = [token for update in updates for token in update.new_token_ids]
    assert tuple(tokens) == expected.greedy_ids

    # entry i tells of the token that follows position i
    entries = [entry for update in updates for entry in update.prompt_logprobs]
    entries += [entry for update in updates for entry in update.logprobs]
    assert len(entries) == len(expected.all_ids) - 1
    want = np.asarray(jax.nn.log_softmax(expected.logits, axis=-1))
    for position, row in zip(expected.positions, want, strict=True):
        entry = entries[position]
        assert entry.token_id == expected.all_ids[position + 1]
        got = np.asarray(entry.top_logprobs)
        np.testing.assert_allclose(got, row[list(entry.top_ids)], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepseek_v2", dict(attention_scale=16**-0.5)),
        ("deepseek_v2", dict(rope=replace(DEEPSEEK_ROPE, magnitude=1.0))),
        ("deepseek_v2", dict(rope=replace(DEEPSEEK_ROPE, scaling="none"))),
        ("deepseek_v2", dict(norm_eps=1e-6)),
        ("deepseek_v2", dict(experts=routing("deepseek_v2", num_active_groups=4))),
        ("deepseek_v2", dict(experts=routing("deepseek_v2", num_groups=2))),
        ("deepseek_v2", dict(experts=routing("deepseek_v2", scale=1.0))),
        ("deepseek_v2", dict(experts=routing("deepseek_v2", normalize=True))),
        ("deepseek_v2_lite", dict(experts=routing("deepseek_v2_lite", num_active=3))),
        ("deepseek_v3", dict(experts=routing("deepseek_v3", num_active_groups=4))),
        ("deepseek_v3", dict(experts=routing("deepseek_v3", num_groups=2))),
        ("deepseek_v3", dict(experts=routing("deepseek_v3", normalize=False))),
        ("gemma2", dict(attention_soft_cap=None)),
        ("gemma2", dict(final_soft_cap=None)),
        ("gemma2", dict(attention_scale=8**-0.5)),
        ("gemma2", dict(embedding_scale=1.0)),
        ("gemma2", dict(layer_windows=(0, 0, 0))),
        ("gemma2", dict(layer_windows=(0, 16, 0))),
        ("gemma2", dict(activation="gelu")),
        ("gemma3", dict(local_rope=None)),
        ("gemma3", dict(rope=PLAIN)),
        ("gemma3", dict(layer_windows=(16,) * 7)),
        ("gpt2", dict(activation="gelu")),
        ("gpt2", dict(norm_eps=1e-3)),
        ("llama3", dict(rope=RopeConfig(theta=5e3))),
        ("llama_mqa", dict(rope=PLAIN)),
        ("llama_yarn", dict(rope=replace(YARN, magnitude=1.0))),
        ("llama_yarn", dict(rope=replace(YARN, whole_pairs=True))),
        ("llama_yarn", dict(rope=replace(YARN, high_freq_factor=16.0))),
        ("mistral", dict(layer_windows=(17, 17))),
        ("opt", dict(activation="silu")),
        ("qwen2", dict(layer_windows=(0, 0, 0))),
        ("qwen3", dict(norm_eps=1e-3)),
    ],
)
def test_every_switch_of_a_family_is_felt(name, changes):
    """A fixture would not notice a switch that moves its logits by less than we allow."""
    expected, decoder = expected_of(name), decoder_of(name)
    other = build_decoder(replace(decoder.config, **changes), decoder_params(decoder))
    logits = dense_logits(other, expected.all_ids)[list(expected.positions)]
    assert np.abs(logits - expected.logits).max() > 2 * TOLERANCE


@pytest.mark.parametrize("name", ["deepseek_v3", "gemma3", "gpt2", "qwen2"])
def test_bfloat16_weights_keep_float32_norms_and_routers(name):
    decoder = load_decoder(FOLDER / name, "bfloat16")
    for path, array in decoder_params(decoder).items():
        stays = "norm" in path or "router" in path
        assert array.dtype == (jnp.float32 if stays else jnp.bfloat16), path
    tokens = jnp.asarray(expected_of(name).all_ids, jnp.int32)
    assert decoder.embed(tokens, jnp.arange(tokens.size)).dtype == jnp.bfloat16

    def attend(q, kv, cache, *_):
        return q[..., : kv.expanded().v.shape[-1]], cache

    residual_dtype = jax.eval_shape(
        lambda: decoder.last_hidden(tokens, jnp.arange(tokens.size), None, attend)
    )[0].dtype
    assert residual_dtype == jnp.bfloat16
    logits = dense_logits(decoder, expected_of(name).all_ids)
    assert logits.dtype == np.float32
    exact = dense_logits(decoder_of(name), expected_of(name).all_ids)
    # transformers in bfloat16 differs as much: 0.10 for qwen2, 0.03 for gpt2
    assert 1e-3 < np.abs(logits - exact).mean() < 0.12
