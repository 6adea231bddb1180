import numpy as np
import pytest

from paxkv.simulation.step_features import (
    MOVES,
    feature_names,
    host_feature_names,
    host_features,
    padded_sizes,
    step_features,
)
from paxkv.step_inputs import make_buckets
from tests.priced import decodes, moves, prefill


@pytest.mark.parametrize("max_num_seqs", [1, 8, 9, 64, 100, 256])
@pytest.mark.parametrize("max_num_batched_tokens", [16, 64, 256, 300, 2560])
def test_sizes_are_those_of_real_steps(max_num_seqs, max_num_batched_tokens):
    real = make_buckets(max_num_seqs, max_num_batched_tokens)
    sizes = padded_sizes(max_num_seqs, max_num_batched_tokens)
    assert (sizes.decode_seqs, sizes.mixed_tokens) == (real.decode_seqs, real.mixed_tokens)


def named_features(work, num_groups=1):
    found = step_features(padded_sizes(64, 256), work)
    names = feature_names(num_groups)
    assert len(found) == len(names) == len(set(names))
    return {name: value for name, value in zip(names, found, strict=True) if value}


def test_features_of_decodes():
    assert named_features(decodes(9, 100)) == {
        "decode_program": 1,
        "decode_padded_seqs": 16,
        "decode_seqs": 9,
        "decode_context_tokens_0": 900,
    }


def test_features_of_a_mixed_step():
    assert named_features(prefill(100, 9, 50)) == {
        "mixed_program": 1,
        "mixed_padded_tokens": 256,
        "mixed_tokens": 109,
        "mixed_seqs": 10,
        "mixed_decode_context_tokens_0": 450,
        "mixed_prefill_pairs_0": 5050,
        "mixed_prefill_context_tokens_0": 100,
    }


def test_features_of_moves():
    names = {name: count for count, name in enumerate(MOVES, start=1)}
    work = moves(**{f"num_{name}": count for name, count in names.items()})
    assert named_features(work) == names


def test_padding_is_that_of_the_shape_a_plan_gets():
    buckets, sizes = make_buckets(64, 256), padded_sizes(64, 256)
    for num_seqs in (1, 8, 9, 33, 64):
        real = buckets.shape_for(np.ones(num_seqs, np.int32))
        assert step_features(sizes, decodes(num_seqs, 1))[1] == real.num_seqs
    for num_tokens in (2, 65, 66, 256):
        real = buckets.shape_for(np.array([num_tokens], np.int32))
        found = named_features(prefill(num_tokens))
        assert found["mixed_padded_tokens"] == real.num_tokens


def test_groups_have_features_of_their_own():
    assert len(feature_names(2)) == len(feature_names(1)) + 4


def test_host_features():
    found = dict(zip(host_feature_names(), host_features(prefill(100, 9)), strict=True))
    assert found == {"step": 1, "seqs": 10, "mixed_step": 1, "prefill_tokens": 100}
