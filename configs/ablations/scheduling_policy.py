"""Who is admitted first when requests wait?

Short prompts first lowers the mean and lets long ones starve (p99 TTFT); the longest cached
prefix first raises the hit rate. The order matters only while there is a queue.
12 cells, about 1 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/scheduling_policy.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "llama3_8b,a100_40,sglang")
    config.output_folder = "results/ablations/scheduling_policy"
    config.cache.num_blocks = 4_001  # prefixes compete for it
    config.scheduler.max_num_seqs = 64
    config.workload.structure = "shared_prefix"
    config.workload.shared_tokens = 512
    config.workload.num_prefixes = 200
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 4.0
    config.workload.num_requests = 400
    config.workload.too_long = "clip"
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={
            "scheduler": {
                "scheduling": ("fcfs", "shortest_prefill", "longest_prefix", "dfs_weight")
            }
        },
        choices={},
        flags=(),
    )
    return config
