"""One chip of TPU7x (Ironwood), whose two cores are counted as one device."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(chip="tpu_7x")
