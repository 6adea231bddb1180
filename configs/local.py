"""A trial that any machine can run really: the shipped model, on the CPU.

    python -m experiments.serve_trace --config=configs/local.py
    python -m experiments.simulate_trace --config=configs/local.py \
        --config.hardware.calibration=results/calibrate/calibration.json

The second predicts the first from what experiments.calibrate has measured on the machine.
Parts by name, as in configs/trial.py: `configs/local.py:vllm_2023,alpaca`.
"""

from ml_collections import config_dict

from configs.trial import get_config as trial


def get_config(parts: str = "") -> config_dict.ConfigDict:
    config = trial(parts, "recall,cpu")
    config.profiles = ("calibrated",)
    config.output_folder = "results/local"
    config.engine.max_context = 1024  # tokens; as long as the prompts of its training
    config.cache.dtype = "float32"
    config.cache.num_blocks = 257  # of 16 tokens: four sequences of full context
    config.scheduler.max_num_seqs = 64
    config.scheduler.max_num_batched_tokens = 256
    config.workload.num_requests = 48
    config.workload.too_long = "scale"  # ShareGPT's lengths to this context
    config.workload.rate_per_s = 10.0
    return config
