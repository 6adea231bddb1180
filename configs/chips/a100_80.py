"""One A100 with 80 GB, and the software of 2023 (arXiv 2309.06180)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(chip="a100_80")
