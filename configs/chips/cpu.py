"""This machine, as `python -m experiments.calibrate` measured it.

Has no published figures: set `calibration`, `cache.num_blocks`, and
`profiles=("calibrated",)`.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        chip="cpu",
        calibration="results/calibrate/calibration.json",
    )
