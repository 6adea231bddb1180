"""How many tokens may a step compute? Chunks of prompts against the pace of outputs.

A small budget keeps steps short, so outputs come evenly, and lets prompts wait; a large one
serves prompts at once, and all outputs wait for them (TTFT against TPOT and ITL).
21 cells, about 1.5 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/chunk_budget.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "llama3_8b,h100,vllm_v1")
    config.output_folder = "results/ablations/chunk_budget"
    config.workload.lengths = "lognormal"
    config.workload.input_tokens = 2_000
    config.workload.output_tokens = 200
    config.workload.arrival = "poisson"
    config.workload.rate_per_s = 6.0
    config.workload.num_requests = 400
    config.workload.too_long = "clip"
    config.sweep = config_dict.create(
        kind="simulated",
        seeds=(0, 1, 2),
        grid={
            "scheduler": {
                "max_num_batched_tokens": (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
            }
        },
        choices={},
        flags=(),
    )
    return config
