"""Which replica gets a request: the next one, the least loaded, or the one that knows it?

Agents come back with growing contexts. Sending them where their prefix is cached raises the
hit rate, and may load one replica more than the others.
9 cells, about 2 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/router.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "llama3_8b,a100_40,vllm_v1")
    config.output_folder = "results/ablations/router"
    config.router.num_replicas = 4
    config.workload.structure = "agents"
    config.workload.num_prefixes = 4
    config.workload.shared_tokens = 1_024
    config.workload.min_turns = 4
    config.workload.max_turns = 12
    config.workload.lengths = "lognormal"
    config.workload.input_tokens = 200
    config.workload.output_tokens = 60
    config.workload.think_s = 2.0
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 2.0  # sessions
    config.workload.num_requests = 200
    config.workload.too_long = "clip"
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={"router": {"policy": ("round_robin", "least_loaded", "prefix_aware")}},
        choices={},
        flags=(),
    )
    return config
