"""Planted: a host that takes longer to prepare a step than the device to compute it.

Run: python -m experiments.simulate_trace --config=configs/planted/host.py
     python -m experiments.diagnose results/planted/host --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_host"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/host"
    config.hardware.host_s_per_step = 1e-3
    config.hardware.host_s_per_seq = 0.5e-3
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
