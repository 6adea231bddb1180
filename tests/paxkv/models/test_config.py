"""Values of the wrong type or range are refused, all in one error."""

import dataclasses
import math

import pytest

from paxkv.models.config import (
    MODEL_RULES,
    ExpertsConfig,
    LatentConfig,
    ModelConfig,
    RopeConfig,
)
from paxkv.models.part_configs import EXPERTS_RULES, LATENT_RULES, ROPE_RULES

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
LATENT = dict(kv_rank=16, query_rank=None, nope_dim=8, rope_dim=4, value_dim=8)
EXPERTS = dict(
    first_layer=1,
    num_experts=8,
    num_active=3,
    num_shared=1,
    intermediate_size=4,
    scoring="sigmoid",
    num_groups=4,
    num_active_groups=2,
)


def test_every_field_has_a_rule():
    for of, rules in (
        (ModelConfig, MODEL_RULES),
        (RopeConfig, ROPE_RULES),
        (LatentConfig, LATENT_RULES),
        (ExpertsConfig, EXPERTS_RULES),
    ):
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
        (dict(scaling="ntk"), "scaling='ntk' must be one of none, linear, llama3, yarn"),
        (dict(magnitude=0), "magnitude=0 must be"),
        (dict(original_context=0), "original_context=0 must be"),
        (dict(low_freq_factor=4.0), "low_freq_factor=4.0 must be < high_freq_factor=4.0"),
    ],
)
def test_broken_ropes(changes, words):
    with pytest.raises(ValueError) as error:
        RopeConfig(**dict(theta=1e4) | changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(scoring="argmax"), "scoring='argmax' must be one of softmax, sigmoid"),
        (dict(num_active=None), "num_active=None must be a whole number"),
        (dict(num_groups=3), "num_experts=8 must be a multiple of num_groups=3"),
        (dict(num_active=5), "num_active=5 experts in num_active_groups=2 of num_groups=4"),
        (dict(num_active_groups=5), "num_active_groups=5 of num_groups=4"),
        (dict(num_groups=8), "2 experts of each group, a group has 1"),
    ],
)
def test_experts_that_cannot_be_chosen(changes, words):
    ExpertsConfig(**EXPERTS)
    with pytest.raises(ValueError) as error:
        ExpertsConfig(**EXPERTS | changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(head_dim=16), "num_kv_heads=1 of head_dim=16 must be 1 of kv_rank"),
        (dict(num_kv_heads=2), "num_kv_heads=2 of head_dim=20 must be 1"),
        (dict(rope=None), "rope=None with latent attention"),
        (dict(experts=ExpertsConfig(**EXPERTS | dict(first_layer=2))), "first_layer=2"),
        (dict(latent=LATENT), "must be the fields of a LatentConfig, or null"),
    ],
)
def test_parts_that_do_not_fit_the_model(changes, words):
    fitting = dict(latent=LatentConfig(**LATENT), num_kv_heads=1, head_dim=20)
    fitting |= dict(experts=ExpertsConfig(**EXPERTS))
    ModelConfig(**PLAIN | fitting)
    with pytest.raises(ValueError) as error:
        ModelConfig(**PLAIN | fitting | changes)
    assert words in str(error.value)
