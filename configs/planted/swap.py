"""Planted: every cached block is copied to the host at once, over a slow link.

Run: python -m experiments.simulate_trace --config=configs/planted/swap.py
     python -m experiments.diagnose results/planted/swap --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_swap"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/swap"
    config.hardware.host_link_bytes_per_s = 0.25e9
    config.cache.num_blocks = 5_001
    config.cache.host_blocks = 5_000
    config.cache.host_write = "write_through"
    config.scheduler.max_num_seqs = 64
    config.workload.update(
        num_requests=32,
        arrival="at_once",
        lengths="fixed",
        too_long="refuse",
        input_tokens=64,
        output_tokens=150,
    )
    return config
