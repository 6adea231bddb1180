"""LLaMA-13B (arXiv 2302.13971, Table 2; huggyllama/llama-13b, config.json)."""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="llama_13b",
        num_layers=40,
        hidden_size=5120,
        intermediate_size=13824,
        num_heads=40,
        num_kv_heads=40,
        head_dim=128,
        num_parameters=13_015_864_320,
        vocab_size=32000,
        max_context=2048,
        weights_dtype="bfloat16",
    )
