"""What does a smaller K/V cost? The shipped model, served from caches of four types.

Its task is recall: only the cache knows the answers, so the share of right ones
(`recall_right` of `recall_answered`) says what a type loses. The pool is the same number
of blocks for all; what is saved is `pool.bytes_per_token`.
Measured, one cell after the other: 4 cells, about 1 min on 2 CPU cores.

Run: python -m experiments.sweep --config=configs/ablations/kv_dtype.py
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "recall,cpu,vllm_v1")
    config.output_folder = "results/ablations/kv_dtype"
    config.hardware.calibration = config_dict.placeholder(str)  # the run's own steps
    config.engine.max_context = 1_024  # as long as the prompts of its training
    config.cache.num_blocks = 257
    config.cache.dtype = "float32"
    config.scheduler.max_num_seqs = 32
    config.scheduler.max_num_batched_tokens = 256
    config.workload.too_long = "scale"
    config.workload.num_requests = 48
    config.sweep = config_dict.create(
        kind="measured",
        seeds=(0,),
        grid={"cache": {"dtype": ("float32", "bfloat16", "int8", "float8_e4m3fn")}},
        choices={},
        flags=("--score_keys",),
    )
    return config
