"""One H200 SXM."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(chip="h200")
