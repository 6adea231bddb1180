"""One chip of TPU v5e."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(chip="tpu_v5e")
