"""What is shared: whole blocks, or tokens, of which a copied block holds the last ones?

Whole blocks lose the end of a prefix that is no multiple of the block size, which grows
with the blocks; sharing tokens loses none and copies a block for each hit.
24 cells, about 1 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/prefix_granularity.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "llama3_8b,a100_40,vllm_v1")
    config.output_folder = "results/ablations/prefix_granularity"
    config.cache.deduplicate = True
    config.workload.structure = "shared_prefix"
    config.workload.shared_tokens = 341  # the paper's five examples of translation
    config.workload.num_prefixes = 20
    config.workload.lengths = "lognormal"
    config.workload.input_tokens = 64
    config.workload.output_tokens = 64
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 20.0
    config.workload.num_requests = 1_000
    config.workload.too_long = "clip"
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={
            "cache": {"granularity": ("block", "token"), "block_size": (16, 32, 64, 256)}
        },
        choices={},
        flags=(),
    )
    return config
