"""Planted: four rows for what needs six. The pool has room and the steps are short.

Run: python -m experiments.simulate_trace --config=configs/planted/queueing.py
     python -m experiments.diagnose results/planted/queueing --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_queueing"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/queueing"
    config.cache.num_blocks = 2001
    config.scheduler.max_num_seqs = 4
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
