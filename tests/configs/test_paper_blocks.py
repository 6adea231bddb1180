"""What the figures over block sizes rest on."""

import math

import pytest

from configs.paper.block_sizes import (
    BYTES_PER_TOKEN,
    HOST_BYTES,
    KV_BYTES,
    SIZES,
    crossover,
    pools,
    smallest,
)
from configs.paper.setup import opt_13b
from paxkv.reproduction.runners.trials import trial_of


@pytest.mark.parametrize("size", SIZES)
def test_each_pool_is_as_many_bytes(size):
    cache = pools()[size]["cache"]
    block_bytes = size * BYTES_PER_TOKEN
    assert 0 <= KV_BYTES - (cache["num_blocks"] - 1) * block_bytes < block_bytes
    assert 0 <= HOST_BYTES - cache["host_blocks"] * block_bytes < block_bytes


def test_the_bytes_are_those_of_the_model():
    trial = trial_of(opt_13b("sharegpt"))
    assert trial.model.kv_bytes_per_token("bfloat16") == (BYTES_PER_TOKEN,)
    assert trial.engine.cache.num_blocks == pools()[16]["cache"]["num_blocks"]


@pytest.mark.parametrize(
    ("falling", "expected"),
    [
        ({1: 9.0, 4: 5.0, 16: 3.0}, 8.0),  # in the middle, by logarithms
        ({1: 9.0, 4: 4.0, 16: 3.0}, 4.0),
        ({1: 3.0, 4: 2.0, 16: 1.0}, 1.0),
        ({1: 9.0, 4: 8.0, 16: 7.0}, math.inf),
    ],
)
def test_where_curves_cross(falling, expected):
    assert crossover(falling, dict.fromkeys(falling, 4.0)) == pytest.approx(expected)


def test_the_smallest_is_named_by_its_size():
    assert smallest({1: 3.0, 16: 0.5, 256: 2.0}) == 16
