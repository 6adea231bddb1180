"""Qwen3-8B (arXiv 2505.09388, Table 1; Qwen/Qwen3-8B, config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="qwen3_8b",
        num_layers=36,
        hidden_size=4096,
        intermediate_size=12288,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        num_parameters=8_190_735_360,
        vocab_size=151_936,
        max_context=40960,
        weights_dtype="bfloat16",
    )
