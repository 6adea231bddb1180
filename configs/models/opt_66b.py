"""OPT-66B (arXiv 2205.01068, Table 1; facebook/opt-66b, config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="opt_66b",
        num_layers=64,
        hidden_size=9216,
        intermediate_size=36864,
        num_heads=72,
        num_kv_heads=72,
        head_dim=128,
        num_parameters=65_719_701_504,
        vocab_size=50272,
        max_context=2048,
        weights_dtype="bfloat16",
    )
