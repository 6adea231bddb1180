"""The paper's numbers that are computed come out exactly, and the settings of its memory
figures are what they say."""

from dataclasses import replace

import pytest

from configs.paper import (
    figure_2,
    figure_3_to_9,
    figure_11,
    figure_13a,
    figure_13b,
    latent_attention,
    table_1,
)
from paxkv.reproduction.jobs import as_mode, jobs_of
from paxkv.reproduction.judging import Verdict, judge
from paxkv.reproduction.runners import load
from paxkv.reproduction.runners.trials import trial_of
from paxkv.trials.simulated import blocks_per_group

POOL_TOKENS = 983 * 16


@pytest.mark.parametrize("config", [table_1, figure_3_to_9, figure_11])
def test_what_is_computed_is_in_its_bands_and_what_is_planted_is_not(config):
    figure = as_mode(config.get_figure(), "quick")
    jobs = jobs_of(figure)
    rows = {
        job.key: {"metrics": load(job.runner).run(job.config, job.profile)} for job in jobs
    }
    for one in judge(figure, jobs, rows, "quick"):
        assert one.verdict in (Verdict.PASS, Verdict.NO_BAND), one
        assert all(rejection.is_rejected for rejection in one.rejections), one
        assert one.rejections or one.check.band is None


@pytest.mark.parametrize("config", [figure_2, figure_13a, figure_13b])
def test_systems_differ_in_memory_alone_and_their_pools_in_nothing(config):
    regions = set()
    for job in jobs_of(replace(config.get_figure(), seeds=(0,), profiles=("ideal",))):
        trial = trial_of(job.config)
        cache = trial.engine.cache
        [num_blocks] = blocks_per_group(trial)
        tokens = (num_blocks - 1) * cache.block_size
        assert 0 <= POOL_TOKENS - tokens < cache.block_size
        if cache.allocator.startswith("contiguous") and job.planted is None:
            regions.add((str(trial.engine.scheduler), trial.engine.max_context))
        until_s = trial.measure.until_s
        assert until_s == job.config["stop_at_s"] == job.config["duration_s"]
        assert until_s is not None and trial.measure.from_s <= 2 / 3 * until_s
    assert len(regions) == 1


def test_kinds_of_attention_have_equal_bytes():
    for job in jobs_of(replace(latent_attention.get_figure(), seeds=(0,))):
        trial = trial_of(job.config)
        [num_blocks] = blocks_per_group(trial)
        held = sum(trial.model.kv_bytes_per_token(trial.engine.cache.dtype))
        assert 0 <= 4 * 2**30 - num_blocks * 16 * held < 16 * held
