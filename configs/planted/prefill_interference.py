"""Planted: long prompts by large steps, so that whoever decodes waits for them.

Run: python -m experiments.simulate_trace --config=configs/planted/prefill_interference.py
     python -m experiments.diagnose results/planted/prefill_interference --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_prefill_interference"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/prefill_interference"
    config.cache.num_blocks = 10_001
    config.cache.prefix_caching = False
    config.scheduler.max_num_batched_tokens = 8192
    config.workload.update(
        num_requests=60,
        arrival="poisson",
        rate_per_s=12.0,
        lengths="fixed",
        too_long="refuse",
        input_tokens=4000,
        output_tokens=16,
    )
    return config
