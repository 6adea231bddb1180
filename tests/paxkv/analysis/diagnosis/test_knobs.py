"""Each knob turns one step, and only where it can."""

import pytest

from paxkv.analysis.diagnosis.knobs import KNOBS, PRICE_NAMES, value_at, with_changes
from tests.paxkv.analysis.diagnosis.synthetic import config

# knob: what it changes of the config of `synthetic`
TURNED = {
    "more_rows": {"scheduler.max_num_seqs": 128},
    "fewer_rows": {"scheduler.max_num_seqs": 32},
    "larger_budget": {"scheduler.max_num_batched_tokens": 1024},
    "smaller_budget": {"scheduler.max_num_batched_tokens": 256},
    "reserve": {"scheduler.admission": "reserve"},
    "watermark": {"scheduler.watermark": 0.1},
    "recompute": None,  # it does so already
    "swap": {"scheduler.pressure": "preempt_swap", "cache.host_blocks": 1001},
    "no_host_tier": None,
    "larger_blocks": {"cache.block_size": 32, "cache.num_blocks": 501},
    "smaller_blocks": {"cache.block_size": 8, "cache.num_blocks": 2001},
    "paged": None,
    "prefix_caching": {"cache.prefix_caching": True},
    "shortest_first": {"scheduler.scheduling": "shortest_prefill"},
    "route_by_prefix": None,  # there is one replica
    "route_by_load": None,
    "fewer_chips": None,  # there is one chip
    "more_blocks": {"cache.num_blocks": 2001},
    "more_chips": {"hardware.num_chips": 2},
    "more_replicas": {"router.num_replicas": 2},
}


@pytest.mark.parametrize("name", KNOBS)
def test_one_step_of_each_knob(name):
    assert KNOBS[name].change(config()) == TURNED[name]
    assert 0 <= KNOBS[name].price < len(PRICE_NAMES)


@pytest.mark.parametrize(
    ("name", "where", "changes"),
    [
        ("recompute", {"scheduler__pressure": "preempt_swap"}, "preempt_recompute"),
        ("recompute", {"scheduler__pressure": "swap_or_recompute"}, "preempt_recompute"),
        ("swap", {"scheduler__pressure": "wait"}, None),
        ("swap", {"cache__num_blocks": None}, None),
        ("swap", {"cache__allocator": "contiguous_max"}, None),
        ("no_host_tier", {"cache__host_blocks": 9, "cache__prefix_caching": True}, 0),
        ("paged", {"cache__allocator": "contiguous_pow2"}, "paged"),
        ("prefix_caching", {"cache__allocator": "contiguous_max"}, None),
        ("smaller_blocks", {"cache__block_size": 1}, None),
        ("larger_blocks", {"cache__num_blocks": 2}, None),
        ("larger_blocks", {"cache__num_blocks": None}, 32),
        ("fewer_rows", {"scheduler__max_num_seqs": 1}, None),
        ("smaller_budget", {"scheduler__max_num_batched_tokens": 16}, None),
        ("fewer_chips", {"hardware__num_chips": 8}, 4),
        ("more_blocks", {"cache__num_blocks": None}, None),  # but more chips have more
        ("route_by_prefix", {"router__num_replicas": 2}, "prefix_aware"),
        ("reserve", {"scheduler__admission": "reserve"}, None),
    ],
)
def test_knobs_elsewhere(name, where, changes):
    turned = KNOBS[name].change(config(**where))
    assert (turned and next(iter(turned.values()))) == changes


def test_fewer_rows_are_fewer_than_ran():
    change = KNOBS["fewer_rows"].change
    assert change({**config(), "running_peak": 9}) == {"scheduler.max_num_seqs": 4}
    assert change({**config(), "running_peak": 99}) == {"scheduler.max_num_seqs": 32}
    assert change({**config(), "running_peak": 1}) is None


def test_flags_are_what_a_user_adds():
    flags = "--config.cache.block_size=32 --config.cache.num_blocks=501"
    assert KNOBS["larger_blocks"].flags(config()) == flags
    assert KNOBS["paged"].flags(config()) == ""


def test_changes_leave_the_config_as_it_was():
    before = config()
    after = with_changes(before, {"cache.block_size": 4, "router.policy": "least_loaded"})
    assert (value_at(after, "cache.block_size"), value_at(before, "cache.block_size")) == (
        4,
        16,
    )
    assert after["router"] == {"policy": "least_loaded", "num_replicas": 1}
    assert after["scheduler"] is before["scheduler"]


@pytest.mark.parametrize("key", ["cache.colour", "cash.block_size", "cache.dtype.x"])
def test_rows_without_a_key_are_refused(key):
    with pytest.raises(ValueError, match=f"the row's config has no {key}"):
        value_at(config(), key)
