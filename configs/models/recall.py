"""The shipped recall model (paxkv/assets/recall/config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="recall",
        num_layers=4,
        hidden_size=128,
        intermediate_size=256,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        num_parameters=656_512,
        vocab_size=256,
        max_context=1280,
        weights_dtype="float32",
    )
