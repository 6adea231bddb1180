"""Planted: two chips with a slow link between them, where one would do.

Run: python -m experiments.simulate_trace --config=configs/planted/communication.py
     python -m experiments.diagnose results/planted/communication --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_communication"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/communication"
    config.hardware.num_chips = 2
    config.hardware.link_bytes_per_s = 5e9
    config.hardware.collective_latency_s = 50e-6
    config.cache.num_blocks = 5_001
    config.scheduler.max_num_seqs = 64
    config.workload.update(
        num_requests=64,
        arrival="at_once",
        lengths="fixed",
        too_long="refuse",
        input_tokens=64,
        output_tokens=100,
    )
    return config
