"""A service with room in everything: nothing may be accused.

Run: python -m experiments.simulate_trace --config=configs/planted/none.py
     python -m experiments.diagnose results/planted/none --verify
"""

from ml_collections import config_dict

from configs import trial


def get_config() -> config_dict.ConfigDict:
    config = trial.get_config("llama3_8b,h100")
    config.name = "planted_none"
    config.profiles = ("calibrated",)
    config.output_folder = "results/planted/none"
    config.hardware.host_s_per_step = 0.5e-3
    config.workload.update(
        num_requests=40,
        arrival="poisson",
        rate_per_s=1.0,
        lengths="fixed",
        too_long="refuse",
        input_tokens=512,
        output_tokens=32,
    )
    return config
