"""Which cached block to give up? Policies of eviction at two sizes of the cache.

Conversations come back after a pause, to find their history cached or to compute it again.
Recency serves them best, and first in, first out is the same here: what a conversation used
last, it also added last. Found at 6,000 blocks (seed 0): hits of 81 % of prompt tokens by
`lru`, 54 % by `lfu`, 51 % by `mru`.
36 cells, about 4 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/eviction.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "llama3_8b,a100_40,vllm_v1")
    config.output_folder = "results/ablations/eviction"
    config.workload.structure = "chat"
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 0.5  # conversations
    config.workload.num_requests = 150
    config.workload.min_turns = 2
    config.workload.max_turns = 8
    config.workload.lengths = "lognormal"
    config.workload.input_tokens = 200
    config.workload.output_tokens = 150
    config.workload.think_s = 20.0
    config.workload.shared_tokens = 256  # the system prompt
    config.workload.too_long = "clip"
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={
            "cache": {
                "num_blocks": (2_001, 6_001),
                "eviction": ("lru", "released", "lfu", "fifo", "mru", "cost_aware"),
            }
        },
        choices={},
        flags=(),
    )
    return config
