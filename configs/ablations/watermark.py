"""How much of the pool should admission leave free?

Nothing left free admits most and preempts most; much left free preempts nobody and lets
requests wait for blocks that nobody uses.
18 cells, about 1 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/watermark.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "opt_13b,a100_40,vllm_2023")
    config.output_folder = "results/ablations/watermark"
    config.hardware.kv_bytes = 12 * 2**30  # the paper's
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 2.2
    config.workload.num_requests = 400
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={"scheduler": {"watermark": (0.0, 0.01, 0.05, 0.1, 0.2, 0.4)}},
        choices={},
        flags=(),
    )
    return config
