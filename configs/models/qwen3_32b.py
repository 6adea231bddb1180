"""Qwen3-32B (arXiv 2505.09388, Table 1; Qwen/Qwen3-32B, config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="qwen3_32b",
        num_layers=64,
        hidden_size=5120,
        intermediate_size=25600,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        num_parameters=32_762_123_264,
        vocab_size=151_936,
        max_context=40960,
        weights_dtype="bfloat16",
    )
