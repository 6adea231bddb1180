"""Planted: twice as many sequences as the pool holds to their end, so victims start again.

Run: python -m experiments.simulate_trace --config=configs/planted/recompute.py
     python -m experiments.diagnose results/planted/recompute --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_recompute"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/recompute"
    config.cache.num_blocks = 101
    config.cache.prefix_caching = False
    config.workload.update(
        num_requests=40,
        arrival="poisson",
        rate_per_s=20.0,
        lengths="fixed",
        too_long="refuse",
        input_tokens=64,
        output_tokens=200,
    )
    return config
