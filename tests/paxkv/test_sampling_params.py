"""Sampling parameters: what is refused, in which words, and what is normalised."""

import dataclasses
import math
import pickle

import numpy as np
import pytest

from paxkv.sampling_params import SamplingParams, check_token_ids

REFUSED = {
    "max_tokens": [0, -1, True, 1.5, None, "3"],
    "min_tokens": [-1, 0.0],
    "temperature": [-0.1, math.nan, math.inf, "hot", None, True, 1e40],
    "top_k": [-2, 1.0],
    "top_p": [0.0, -0.5, 1.01, math.nan],
    "min_p": [-0.1, 1.1, math.nan],
    "repetition_penalty": [0.0, -1.0, math.inf],
    "presence_penalty": [2.1, -2.1, math.nan],
    "frequency_penalty": [2.1, -2.1],
    "logit_bias": [
        {1: math.nan},
        {"a": 1.0},
        {-1: 1.0},
        {1.5: 1.0},
        3,
        {1: math.inf},
        {1: 10**400},
        [1],
        [(1, 2.0, 3.0)],
        [None],
    ],
    "seed": [-1, 2**64, True, 1.0],
    "stop": ["", ("a", ""), (1,), 3],
    "stop_token_ids": [(-1,), "ab", (1.5,), 3, (True,)],
    "logprobs": [-1, 21, True],
    "prompt_logprobs": [-1, 21],
    "ignore_eos": [1, None],
    "include_stop_str_in_output": ["yes"],
    "skip_special_tokens": [0],
    "n": [0, 1.5, True],
    "best_of": [0, "2"],
    "use_beam_search": [1, None],
    "length_penalty": ["1", math.nan],
    "early_stopping": ["always", 1, None],
}


def without_type_check(**values) -> SamplingParams:
    """As outside tests, where annotations are not enforced before the object's own."""
    params = object.__new__(SamplingParams)
    for field in dataclasses.fields(SamplingParams):
        object.__setattr__(params, field.name, values.get(field.name, field.default))
    params.__post_init__()
    return params


def test_every_field_is_checked():
    assert set(REFUSED) == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]]
)
def test_refusal_names_field_and_value(name, value):
    with pytest.raises(ValueError) as caught:
        without_type_check(**{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert ";" in str(caught.value)  # the rule; the remedy


def test_all_problems_are_in_one_error():
    with pytest.raises(ValueError, match=r"max_tokens=0.*top_p=2.*seed=-3"):
        SamplingParams(max_tokens=0, top_p=2.0, seed=-3)


def test_a_bias_is_a_pair():
    with pytest.raises(ValueError, match=r"logit_bias=\[1\] holds 1, .* pair; give a dict"):
        without_type_check(logit_bias=[1])
    assert without_type_check(logit_bias=[[2, 1]]).logit_bias == ((2, 1.0),)


def test_contradictory_lengths():
    with pytest.raises(ValueError, match=r"min_tokens=9 exceeds max_tokens=8"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_values_at_the_limits_are_accepted():
    SamplingParams(max_tokens=1, min_tokens=1, temperature=0, top_k=-1, top_p=1)
    SamplingParams(top_p=1e-6, min_p=1, logprobs=20, prompt_logprobs=0, seed=2**64 - 1)
    SamplingParams(
        presence_penalty=-2, frequency_penalty=2, include_stop_str_in_output=True
    )


def test_normalisation():
    params = without_type_check(
        temperature=1,
        top_k=np.int64(3),
        stop="end",
        stop_token_ids=[3, np.int32(4)],
        logit_bias={7: 1, 2: np.float32(-0.5)},
    )
    assert params.stop == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == ((2, -0.5), (7, 1.0))
    assert type(params.temperature) is float and type(params.top_k) is int
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams().logit_bias is None


def test_is_an_immutable_value():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias, stop="x")
    bias[1] = 3.0
    assert params.logit_bias == ((1, 2.0),)
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(params) == hash(SamplingParams(logit_bias={1: 2.0}, stop=("x",)))
    assert dataclasses.replace(params, max_tokens=3).logit_bias == params.logit_bias
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.__setattr__("seed", 1)


def test_token_ids_against_the_vocabulary():
    params = SamplingParams(stop_token_ids=[5, 10], logit_bias={11: 1.0})
    assert check_token_ids(params, 12) is None
    message = check_token_ids(params, 10)
    assert message is not None
    assert "stop_token_ids" in message and "[10]" in message and "0..9" in message
    assert "logit_bias" in message and "[11]" in message
    assert check_token_ids(SamplingParams(), 1) is None
