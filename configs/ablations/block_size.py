"""Which block size serves best? From a token a block to 256 (the paper's figure 18b).

Small blocks waste nothing and are slow to read, large ones leave their last part empty:
latency is best in between. The pool is the same number of bytes for all. Found (calibrated,
seed 0): 0.13 s a token at 16, three times that at 1, two and a half times at 256.
27 cells, about 1.5 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/block_size.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "opt_13b,a100_40,vllm_2023")
    config.output_folder = "results/ablations/block_size"
    config.hardware.kv_bytes = 12 * 2**30  # the paper's
    config.cache.host_blocks = 0  # their number would depend on the block size
    config.scheduler.pressure = "preempt_recompute"
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 2.0  # near its capacity
    config.workload.num_requests = 400
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={"cache": {"block_size": (1, 2, 4, 8, 16, 32, 64, 128, 256)}},
        choices={},
        flags=(),
    )
    return config
