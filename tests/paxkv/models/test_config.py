"""Values of the wrong type or range are refused, all in one error."""

import dataclasses
import math

import pytest

from paxkv.models.config import MODEL_RULES, ROPE_RULES, ModelConfig, RopeConfig

PLAIN = dict(
    family="llama",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_context=64,
    rope=RopeConfig(theta=1e4),
    layer_windows=(0, 16),
    attention_scale=0.5,
    bos_token_id=1,
    eos_token_ids=(2, 95),
)


def test_every_field_has_a_rule():
    for of, rules in ((ModelConfig, MODEL_RULES), (RopeConfig, ROPE_RULES)):
        assert {field.name for field in dataclasses.fields(of)} == rules.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("family", "mamba"),
        ("vocab_size", 2.5),
        ("hidden_size", "64"),
        ("hidden_size", -4),
        ("hidden_size", 10**30),
        ("num_layers", True),
        ("num_heads", -2),
        ("num_kv_heads", 0),
        ("max_context", -1),
        ("norm", "batch"),
        ("norm_eps", -1),
        ("norm_eps", math.nan),
        ("activation", ["silu"]),
        ("gated_mlp", 1),
        ("tied_embeddings", "no"),
        ("rope", {}),
        ("layer_windows", "x"),
        ("layer_windows", (0, -1)),
        ("layer_windows", (0, "x")),
        ("attention_scale", math.inf),
        ("final_soft_cap", 0.0),
        ("bos_token_id", 96),
        ("bos_token_id", -1),
        ("eos_token_ids", (10**6,)),
        ("eos_token_ids", ("a",)),
        ("eos_token_ids", ([1],)),
    ],
)
def test_a_broken_rule_names_field_value_and_rule(name, value):
    ModelConfig(**PLAIN)
    with pytest.raises(ValueError, match=rf"^{name}=.* must be .*Correct"):
        ModelConfig(**PLAIN | {name: value})


def test_all_broken_rules_are_one_error():
    with pytest.raises(ValueError) as error:
        ModelConfig(**PLAIN | dict(head_dim=None, qk_norm="yes"))
    assert "head_dim=None must be a whole number from 1" in str(error.value)
    assert "qk_norm='yes' must be true or false" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(theta="x"), "theta='x' must be a finite number > 0"),
        (dict(theta=0), "theta=0 must be"),
        (dict(factor=0.0), "factor=0.0 must be"),
        (dict(scaling="yarn"), "scaling='yarn' must be one of none, linear, llama3"),
        (dict(original_context=0), "original_context=0 must be"),
        (dict(low_freq_factor=4.0), "low_freq_factor=4.0 must be < high_freq_factor=4.0"),
    ],
)
def test_broken_ropes(changes, words):
    with pytest.raises(ValueError) as error:
        RopeConfig(**dict(theta=1e4) | changes)
    assert words in str(error.value)
