"""Mistral-7B v0.1 (arXiv 2310.06825, Table 1; mistralai/Mistral-7B-v0.1, config.json).

All layers see 4,096 tokens. Later versions have no window.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="mistral_7b",
        num_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        num_parameters=7_241_732_096,
        vocab_size=32000,
        max_context=32768,
        window=4096,
        num_window_layers=32,
        weights_dtype="bfloat16",
    )
