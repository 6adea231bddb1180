"""Planted: so many sequences that weights are no longer what a step reads most.

Run: python -m experiments.simulate_trace --config=configs/planted/decode.py
     python -m experiments.diagnose results/planted/decode --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("opt_13b,a100_80")
    config.name = "planted_decode"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/decode"
    config.hardware.host_s_per_step = 1e-3
    config.hardware.host_s_per_seq = 10e-6
    config.cache.num_blocks = 5_001
    config.scheduler.max_num_seqs = 192
    config.workload.update(
        num_requests=192,
        arrival="at_once",
        lengths="fixed",
        too_long="refuse",
        input_tokens=24,
        output_tokens=150,
    )
    return config
