"""How many requests run at once when a sequence's K/V must lie in one piece?

Contiguous allocators reserve the longest possible sequence, the next power of two or, with
an oracle, what it will really need; paging reserves nothing (the paper's figures 2 and 12).
21 cells, about 1.5 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/allocator.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "opt_13b,a100_40,vllm_v1")
    config.output_folder = "results/ablations/allocator"
    config.hardware.kv_bytes = 12 * 2**30  # the paper's
    config.cache.prefix_caching = False  # only paging could share
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 1.5
    config.workload.num_requests = 400
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={
            "cache": {
                "allocator": (
                    "paged",
                    "contiguous_max",
                    "contiguous_pow2",
                    "contiguous_oracle",
                    "contiguous_first_fit",
                    "contiguous_compact",
                    "contiguous_grow",
                )
            }
        },
        choices={},
        flags=(),
    )
    return config
