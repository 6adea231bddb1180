"""What becomes of a request when the pool is full: given up, recomputed or swapped out?

Rejecting keeps latency low and loses requests; recomputing costs work of the chip, swapping
time of the link to the host (the paper's figure 19, and its section 4.5).
9 cells, half a minute on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/preemption.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "opt_13b,a100_40,vllm_2023")
    config.output_folder = "results/ablations/preemption"
    config.hardware.kv_bytes = 12 * 2**30  # the paper's
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 2.5  # more than it can serve
    config.workload.num_requests = 400
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={"preemption": ("reject", "recompute", "swap")},
        choices={
            "preemption": {
                "reject": {
                    "scheduler": {"pressure": "reject"},
                    "cache": {"host_blocks": 0},
                },
                "recompute": {
                    "scheduler": {"pressure": "preempt_recompute"},
                    "cache": {"host_blocks": 0},
                },
                "swap": {
                    "scheduler": {"pressure": "preempt_swap"},
                    "cache": {"host_blocks": 1638},  # 20 GiB, as in the artifact
                },
            }
        },
        flags=(),
    )
    return config
