"""Figures of configs/paper that go beyond the paper: what their checks compute."""

import pytest

from configs.paper import beyond_chips, beyond_chunked_prefill
from paxkv.reproduction.found import Found, Run
from paxkv.reproduction.jobs import jobs_of
from paxkv.trials.simulated import blocks_per_group
from paxkv.trials.trial_config import trial_config


def test_each_model_fits_its_chips():
    first = {job.labels["system"]: job.config for job in jobs_of(beyond_chips.get_figure())}
    assert len(first) == 12
    for label, config in first.items():
        trial = trial_config(config)
        (num_blocks,) = blocks_per_group(trial)
        assert num_blocks * trial.engine.cache.block_size > trial.max_context, label


@pytest.mark.parametrize(
    ("gaps_s", "queues_s", "capacity_per_s"),
    [
        ((0.05, 0.15, 0.15), (0.0, 0.0, 0.0), 3.5),  # the pace is lost first
        ((0.05, 0.05, 0.05), (0.0, 1.0, 3.0), 6.5),  # the queue grows first
        ((0.05, 0.05, 0.05), (0.0, 0.0, 0.0), 14.0),  # neither
    ],
)
def test_capacity_is_where_the_first_limit_is_crossed(gaps_s, queues_s, capacity_per_s):
    runs = [
        Run(
            labels={"prefill": "some", "workload.rate_per_s": rate},
            metrics={"latency": {"itl_s": {"p99": gap}, "queue_s": {"p50": queue}}},
        )
        for rate, gap, queue in zip((2.0, 5.0, 8.0), gaps_s, queues_s, strict=True)
    ]
    found = beyond_chunked_prefill._capacity_per_s(Found(runs), "some")
    assert found == pytest.approx(capacity_per_s)
