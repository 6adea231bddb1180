"""Llama-3-70B (arXiv 2407.21783, Table 3; meta-llama/Meta-Llama-3-70B, config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="llama3_70b",
        num_layers=80,
        hidden_size=8192,
        intermediate_size=28672,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        num_parameters=70_553_706_496,
        vocab_size=128_256,
        max_context=8192,
        weights_dtype="bfloat16",
    )
