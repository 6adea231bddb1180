import math
from dataclasses import fields

import pytest

from paxkv.workloads import workload_config
from paxkv.workloads.structures import STRUCTURES
from paxkv.workloads.workload_config import WorkloadConfig, offered_rate_per_s

TRACE = {"structure": "trace", "trace_path": "t.csv"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_requests": 0}, "workload.num_requests=0 must be in 1"),
        ({"num_requests": None}, "num_requests=None needs structure='trace'"),
        ({"seed": -1}, "workload.seed=-1"),
        ({"arrival": "bursts"}, "arrival='bursts' is not offered; use one of at_once"),
        ({"arrival": "closed"}, "arrival='closed' is not offered"),
        ({"arrival": "trace"}, "arrival='trace' needs structure='trace'"),
        ({"rate_per_s": 0.0}, "rate_per_s=0.0 must be"),
        ({"rate_per_s": -1}, "rate_per_s=-1 must be"),
        ({"rate_per_s": math.nan}, "rate_per_s=nan must be finite"),
        ({"rate_per_s": math.inf}, "rate_per_s=inf must be finite"),
        ({"burstiness_cv": 0}, "burstiness_cv=0 must be"),
        ({"concurrency": 0}, "concurrency=0 must be"),
        (TRACE | {"rate_scale": 0}, "rate_scale=0 must be"),
        ({"structure": "tree"}, "structure='tree' is not offered"),
        ({"structure": "trace"}, "structure='trace' needs a file"),
        ({"trace_path": "t.csv"}, "trace_path='t.csv' is read by structure='trace'"),
        ({"lengths": "gauss"}, "lengths='gauss' is not offered"),
        ({"input_tokens": 0}, "input_tokens=0 must be"),
        ({"output_tokens": 2**40}, "output_tokens=1099511627776 must be"),
        ({"input_sigma": -0.1}, "input_sigma=-0.1 must be"),
        ({"think_s": -1.0}, "think_s=-1.0 must be"),
        ({"new_conversations": 0.0}, "new_conversations=0.0 must be"),
        (
            {"structure": "chat", "min_turns": 3, "max_turns": 2},
            "min_turns=3 must be at most max_turns=2",
        ),
        ({"max_turns": 2}, "max_turns=2 needs structure 'chat'"),
        ({"structure": "shared_prefix"}, "shared_tokens=0 gives structure='shared_prefix'"),
        ({"documents_per_request": 9, "num_documents": 8}, "documents_per_request=9"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"too_long": "ignore"}, "too_long='ignore' is not offered"),
        ({"too_long": "scale", "lengths": "fixed"}, "too_long='scale' needs scale_from"),
        (TRACE | {"trace_format": "parquet"}, "trace_format='parquet' is not offered"),
        (TRACE | {"max_malformed": -1}, "max_malformed=-1 must be"),
    ],
)
def test_refused_settings_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        WorkloadConfig(**{"num_requests": 1} | settings)


def test_every_field_is_checked_and_every_structure_exists():
    names = {field.name for field in fields(WorkloadConfig)}
    assert set(workload_config._CHECKS) == names
    assert set(workload_config.STRUCTURE_NAMES) == {*STRUCTURES, "trace"}


def test_users_are_those_of_a_closed_loop():
    config = WorkloadConfig(num_requests=1, arrival="closed_loop", concurrency=7)
    assert config.users == 7
    assert WorkloadConfig(num_requests=1, concurrency=7).users is None


@pytest.mark.parametrize(
    ("arrival", "rate"),
    [("poisson", 3.0), ("gamma", 3.0), ("uniform", 3.0), ("at_once", None)],
)
def test_the_offered_rate(arrival, rate):
    config = WorkloadConfig(num_requests=1, arrival=arrival, rate_per_s=3)
    assert offered_rate_per_s(config) == rate


def test_the_context_that_lengths_are_scaled_from():
    assert WorkloadConfig(num_requests=1).scale_from == 2048
    assert WorkloadConfig(num_requests=1, lengths="fixed").scale_from is None
    config = WorkloadConfig(num_requests=1, scale_from_tokens=4096)
    assert config.scale_from == 4096
