"""The ideas of the stacked gains, and the caches of the comparison, can all be run."""

from configs import compare_caches
from configs.ablations import stacked_gains
from paxkv.allocators import ALLOCATORS
from paxkv.sweeps.grid import SweepConfig, make_cells
from paxkv.trials.simulated import blocks_per_group
from paxkv.trials.trial_config import trial_config


def trials_of(config):
    tree = config.to_dict()
    return [
        (cell.labels, trial_config(cell.config))
        for cell in make_cells(tree, SweepConfig(**tree["sweep"]))
    ]


def test_the_ideas_change_what_they_say_and_the_pool_keeps_its_bytes():
    trials = {
        labels["ideas"]: trial for labels, trial in trials_of(stacked_gains.get_config())
    }
    assert len(trials) == 12

    def per_token(ideas):
        return sum(trials[ideas].model.kv_bytes_per_token(trials[ideas].engine.cache.dtype))

    # 40 layers, K and V of 40 heads of 128 numbers of two bytes
    assert per_token("contiguous") == per_token("paging") == 40 * 2 * 40 * 128 * 2
    assert per_token("paging + GQA") * 5 == per_token("paging")
    assert per_token("paging + MLA") == 40 * 576 * 2
    assert per_token("paging + int8") == 40 * 2 * 40 * (128 + 4)
    assert trials["paging + windows"].model.group_windows == (None, 512)
    stacked = trials["paging + GQA + prefix sharing + int8 + windows"]
    assert stacked.engine.cache.prefix_caching and stacked.model.num_kv_heads == 8
    for ideas in ("contiguous", "paging + GQA", "paging + MLA + prefix sharing + int8"):
        [num_blocks] = blocks_per_group(trials[ideas])
        held = num_blocks * 16 * per_token(ideas)
        assert 0 <= 3_400_000_000 - held < 16 * per_token(ideas)


def test_every_cache_under_every_workload():
    trials = trials_of(compare_caches.get_config())
    found = {(labels["workload"], labels["allocator"]) for labels, _ in trials}
    assert len(found) == 4 * len(ALLOCATORS) and len(trials) == 2 * len(found)
    for labels, trial in trials:
        assert trial.engine.cache.allocator == labels["allocator"]
        assert trial.engine.cache.prefix_caching == (labels["allocator"] == "paged")
