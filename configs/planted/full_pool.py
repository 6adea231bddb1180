"""Planted: a pool that is full of tokens, whose requests reserve all they may need.

Run: python -m experiments.simulate_trace --config=configs/planted/full_pool.py
     python -m experiments.diagnose results/planted/full_pool --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_full_pool"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/full_pool"
    config.cache.num_blocks = 73
    config.scheduler.admission = "reserve"
    config.workload.update(
        num_requests=60,
        arrival="poisson",
        rate_per_s=18.0,
        lengths="fixed",
        too_long="refuse",
        input_tokens=256,
        output_tokens=32,
    )
    return config
