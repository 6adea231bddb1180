"""Both spellings of Hugging Face configs, the defaults, and what is refused by name."""

import json
import math

import pytest

from paxkv.models.config import ModelConfig, RopeConfig
from paxkv.models.hf_config import FAMILIES, config_from_hf
from paxkv.models.loading import read_hf_config
from tests.paxkv.models.hf_fixtures import FOLDER

LLAMA3_SCALING = dict(
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
    rope_type="llama3",
)


def fields_of(name: str, **changes) -> dict:
    return json.loads((FOLDER / name / "config.json").read_text()) | changes


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_empty_config_has_the_defaults_of_transformers(family):
    fields = {"model_type": family}
    if family == "gemma3":
        fields["text_config"] = {}
    if family == "deepseek_v2":
        fields["num_experts_per_tok"] = 6  # transformers has none that works
    config = config_from_hf(fields)
    assert config.num_layers == len(config.layer_windows)
    assert config.vocab_size > 30_000


def test_rope_in_the_spelling_of_transformers_4_and_5():
    plain = dict(model_type="llama", max_position_embeddings=131_072)
    old = plain | dict(rope_theta=5e5, rope_scaling=LLAMA3_SCALING)
    new = plain | dict(rope_parameters=LLAMA3_SCALING | dict(rope_theta=5e5))
    assert config_from_hf(old) == config_from_hf(new)
    assert config_from_hf(new).rope == RopeConfig(
        theta=5e5, scaling="llama3", factor=8.0, original_context=8192
    )
    oldest = plain | dict(rope_scaling=dict(type="linear", factor=2.0))
    assert config_from_hf(oldest).rope == RopeConfig(
        theta=1e4, scaling="linear", factor=2.0
    )


def test_both_spellings_beside_each_other_must_agree():
    fields = dict(model_type="llama", rope_parameters=LLAMA3_SCALING | dict(rope_theta=5e5))
    agreeing = fields | dict(rope_theta=500_000, rope_scaling=LLAMA3_SCALING)
    assert config_from_hf(agreeing) == config_from_hf(fields)
    for other in (
        dict(rope_theta=1e4),
        dict(rope_scaling=LLAMA3_SCALING | dict(factor=32.0)),
        dict(rope_scaling=dict(rope_type="linear", factor=8.0)),
        dict(rope_scaling=LLAMA3_SCALING | dict(rope_theta=1e4)),
    ):
        with pytest.raises(ValueError, match="rope_parameters=.* contradict .*; remove"):
            config_from_hf(fields | other)
    with pytest.raises(ValueError, match="contradict"):
        config_from_hf(fields_of("gemma3", rope_local_base_freq=2e4))


def test_gemma3_in_the_spelling_of_transformers_4_and_5():
    new = fields_of("gemma3")
    old = dict(new, rope_scaling=dict(rope_type="linear", factor=4.0), rope_theta=1e6)
    old |= dict(rope_local_base_freq=1e4, sliding_window_pattern=6)
    del old["rope_parameters"], old["layer_types"], old["_sliding_window_pattern"]
    assert config_from_hf(old) == config_from_hf(new)
    assert config_from_hf(new).layer_windows == (16, 16, 16, 16, 16, 0, 16)


def test_gemma3_with_images_is_its_text_model():
    text = fields_of("gemma3")
    outer = dict(model_type="gemma3", text_config=text, eos_token_id=[1, 95])
    config = config_from_hf(outer)
    assert config.eos_token_ids == (1, 95)
    assert config.layer_windows == config_from_hf(text).layer_windows


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        (dict(model_type="mistral"), (4096, 4096)),
        (dict(model_type="mistral", sliding_window=None), (0, 0)),
        (dict(model_type="qwen2"), (0, 0)),
        (
            dict(model_type="qwen2", use_sliding_window=True, max_window_layers=1),
            (0, 4096),
        ),
        (dict(model_type="qwen3", sliding_window=None), (0, 0)),
        (dict(model_type="gemma2"), (4096, 0)),
        (
            dict(
                model_type="qwen3",
                layer_types=["sliding_attention", "full_attention"],
                sliding_window=7,
            ),
            (7, 0),
        ),
    ],
)
def test_windows(fields, windows):
    config = config_from_hf(fields | dict(num_hidden_layers=2))
    assert config.layer_windows == windows


def test_a_null_is_not_an_omission():
    base = dict(model_type="gemma2")
    assert config_from_hf(base).final_soft_cap == 30.0
    assert config_from_hf(base | dict(final_logit_softcapping=None)).final_soft_cap is None
    assert config_from_hf(dict(model_type="llama")).eos_token_ids == (2,)
    none = dict(model_type="llama", eos_token_id=None, num_key_value_heads=None)
    assert config_from_hf(none).eos_token_ids == ()
    assert config_from_hf(none).num_kv_heads == 32


def test_yarn_and_deepseeks_part_of_it_in_the_softmax():
    yarn = dict(type="yarn", factor=40, original_max_position_embeddings=4096)
    deepseek = yarn | dict(beta_fast=16, beta_slow=2, mscale=0.5, mscale_all_dim=1.0)
    config = config_from_hf(dict(model_type="deepseek_v3", rope_scaling=deepseek))
    assert config.rope == RopeConfig(
        theta=1e4,
        scaling="yarn",
        factor=40.0,
        low_freq_factor=2.0,
        high_freq_factor=16.0,
        original_context=4096,
        magnitude=(0.05 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
    )
    assert config.attention_scale == 192**-0.5 * (0.1 * math.log(40) + 1) ** 2
    for share in (dict(), dict(mscale_all_dim=0)):
        rope_scaling = yarn | dict(mscale=0.707) | share
        config = config_from_hf(dict(model_type="deepseek_v3", rope_scaling=rope_scaling))
        assert config.rope.magnitude == 0.1 * math.log(40) + 1
        assert config.attention_scale == 192**-0.5
    config = config_from_hf(dict(model_type="deepseek_v3"))
    assert (config.attention_scale, config.rope) == (192**-0.5, RopeConfig(theta=1e4))


def test_yarn_of_other_families():
    yarn = dict(rope_type="yarn", rope_theta=1e6, original_max_position_embeddings=8192)
    plain = dict(model_type="qwen2", max_position_embeddings=32_768)
    config = config_from_hf(plain | dict(rope_parameters=yarn | dict(truncate=False)))
    assert (config.rope.factor, config.rope.whole_pairs) == (4.0, False)
    assert (config.rope.low_freq_factor, config.rope.high_freq_factor) == (1.0, 32.0)
    assert config.attention_scale == 128**-0.5
    given = config_from_hf(plain | dict(rope_parameters=yarn | dict(attention_factor=0.9)))
    assert given.rope.magnitude == 0.9
    with pytest.raises(ValueError, match="mscale=-1 must be a finite number ≥ 0"):
        config_from_hf(plain | dict(rope_parameters=yarn | dict(mscale=-1)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(model_type="mamba"), ["'mamba'", "gpt2, llama, mistral, opt, qwen2"]),
        (dict(), ["model_type=None", "llama"]),
        (
            dict(model_type="opt", do_layer_norm_before=False),
            ["do_layer_norm_before=False", "350m"],
        ),
        (dict(model_type="opt", word_embed_proj_dim=512), ["word_embed_proj_dim=512"]),
        (dict(model_type="opt", _remove_final_layer_norm=True), ["_remove_final"]),
        (
            dict(model_type="gpt2", scale_attn_by_inverse_layer_idx=True),
            ["scale_attn_by_inverse_layer_idx=True"],
        ),
        (dict(model_type="gpt2", scale_attn_weights=False), ["scale_attn_weights=False"]),
        (dict(model_type="gpt2", add_cross_attention=True), ["add_cross_attention"]),
        *[
            (
                dict(model_type="llama", rope_scaling=dict(rope_type=name, factor=2.0)),
                [f"rope_type='{name}'", "default, linear, llama3, yarn"],
            )
            for name in ("dynamic", "longrope")
        ],
        (
            dict(model_type="llama", partial_rotary_factor=0.5),
            ["partial_rotary_factor=0.5"],
        ),
        (dict(model_type="llama", hidden_act="relu2"), ["'relu2'", "gelu_new"]),
        (
            dict(model_type="llama", quantization_config=dict(quant_method="awq")),
            ["quantization_config", "dequantise"],
        ),
        (
            dict(model_type="gemma3_text", use_bidirectional_attention=True),
            ["use_bidirectional_attention=True"],
        ),
        (
            dict(model_type="qwen2", num_hidden_layers=1, layer_types=["chunked"]),
            ["'chunked'", "sliding_attention"],
        ),
        (
            dict(model_type="llama", num_attention_heads=6, num_key_value_heads=4),
            ["num_heads=6", "num_kv_heads=4"],
        ),
        (dict(model_type="deepseek_v2"), ["num_active=None", "a whole number"]),
        *[
            (
                dict(model_type=model_type) | fields,
                [repr(value) for value in fields.values()],
            )
            for model_type, fields in [
                ("deepseek_v2", dict(scoring_func="sigmoid")),
                ("deepseek_v2", dict(topk_method="noaux_tc")),
                ("deepseek_v2", dict(norm_topk_prob=True)),
                ("deepseek_v2", dict(mlp_bias=True)),
                ("deepseek_v3", dict(scoring_func="softmax")),
                ("deepseek_v3", dict(topk_method="greedy")),
                ("deepseek_v3", dict(rope_interleave=False)),
                ("deepseek_v3", dict(num_key_value_heads=8)),
                ("deepseek_v3", dict(moe_layer_freq=2)),
            ]
        ],
        (dict(model_type="deepseek_v3", n_group=3), ["num_groups=3", "num_experts=256"]),
        (dict(model_type="deepseek_v3", first_k_dense_replace=61), ["first_layer=61"]),
    ],
)
def test_refusals_name_the_value_and_the_remedy(fields, words):
    with pytest.raises(ValueError) as refusal:
        config_from_hf(fields)
    for word in words:
        assert word in str(refusal.value)


def test_generation_config_gives_the_stop_tokens(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="llama")))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert read_hf_config(tmp_path).eos_token_ids == (5, 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", -4),
        ("vocab_size", 2.5),
        ("num_attention_heads", -2),
        ("num_key_value_heads", 0),
        ("num_hidden_layers", "x"),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", -1),
        ("rms_norm_eps", -1),
        ("rms_norm_eps", "x"),
        ("rope_theta", "x"),
        ("rope_theta", 0),
        ("rope_scaling", "x"),
        ("sliding_window", "x"),
        ("layer_types", "full_attention"),
        ("tie_word_embeddings", "no"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma3"])
def test_a_strange_value_is_named_with_file_and_rule(tmp_path, family, name, value):
    fields = {"model_type": family, name: value}
    if family == "gemma3":
        fields = {"model_type": family, "text_config": {name: value}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=rf"config\.json: {name}=.* must be"):
        read_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(eos_token_id="a"), "eos_token_ids=('a',) must be"),
        (dict(eos_token_id=10**6), "eos_token_ids=(1000000,) must be"),
        (dict(eos_token_id=[[1]]), "eos_token_ids=([1],) must be"),
        (dict(layer_types=[]), "layer_types names 0 layers"),
        (dict(rope_scaling=dict(type="linear", factor=0)), "factor=0 must be"),
        (dict(rope_parameters=dict(rope_theta="x")), "rope_theta='x' must be"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_strange_lists_and_objects_are_named(tmp_path, family, fields, words):
    fields |= {"model_type": family}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError) as error:
        read_hf_config(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'config.json'}: {words}")


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "llama", "hidden_size": "x"}'])
def test_a_damaged_config_names_its_file(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_hf_config(tmp_path)


def test_one_window_per_layer():
    with pytest.raises(ValueError, match="layer_windows names 1 layers"):
        ModelConfig(
            family="llama",
            vocab_size=8,
            hidden_size=8,
            intermediate_size=8,
            num_layers=2,
            num_heads=2,
            num_kv_heads=2,
            head_dim=4,
            max_context=8,
            layer_windows=(0,),
            attention_scale=0.5,
        )
