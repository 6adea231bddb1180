"""Llama-3-8B (arXiv 2407.21783, Table 3; meta-llama/Meta-Llama-3-8B, config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="llama3_8b",
        num_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        num_parameters=8_030_261_248,
        vocab_size=128_256,
        max_context=8192,
        weights_dtype="bfloat16",
    )
