"""Contiguous and paged caches of OPT-13B on an A100-40, under four workloads.

The workloads are chosen so that the usual claims hold under some and not under others:
ShareGPT's long outputs and Alpaca's short ones above what any cache can serve, requests
that fill the whole context at once, under which a reservation of it wastes little, and a
system prompt that all share.

Run: python -m experiments.compare_caches --config=configs/compare_caches.py
"""

from ml_collections import config_dict

from configs import trial
from paxkv.allocators import ALLOCATORS

OUTPUT_TOKENS = 64  # of requests that fill OPT's context of 2,048 with their prompts


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("opt_13b,a100_40")
    config.name = "compare_caches"
    config.output_folder = "results/compare_caches"
    config.record_requests = False
    config.cache.prefix_caching = False  # of paged, below
    config.scheduler.max_num_seqs = 512  # so that memory is the limit
    config.workload.too_long = "clip"
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1),
        grid={
            "workload": ("sharegpt", "alpaca", "full_context", "shared_prefix"),
            "allocator": tuple(reversed(ALLOCATORS)),
        },
        choices={"workload": _workloads(), "allocator": _allocators()},
    )
    return config


def _allocators() -> dict:
    """Only blocks can be shared."""
    return {
        name: {"cache": {"allocator": name, "prefix_caching": name == "paged"}}
        for name in ALLOCATORS
    }


def _workloads() -> dict:
    poisson = {"arrival": "poisson", "num_requests": 300}
    return {
        "sharegpt": {"workload": poisson | {"lengths": "sharegpt", "rate_per_s": 4.0}},
        "alpaca": {
            "workload": poisson
            | {"lengths": "alpaca", "rate_per_s": 60.0, "num_requests": 900}
        },
        "full_context": {
            "workload": {
                "arrival": "at_once",
                "num_requests": 64,
                "lengths": "fixed",
                "input_tokens": 2048 - OUTPUT_TOKENS,
                "output_tokens": OUTPUT_TOKENS,
            }
        },
        "shared_prefix": {
            "workload": poisson
            | {
                "structure": "shared_prefix",
                "shared_tokens": 512,
                "lengths": "alpaca",
                "rate_per_s": 20.0,
                "num_requests": 600,
            }
        },
    }
