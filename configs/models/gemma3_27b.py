"""Gemma-3-27B, its text part (arXiv 2503.19786, §2; google/gemma-3-27b-it, config.json).

Of six layers, five see 1,024 tokens and the sixth sees all: 52 of 62 have the window.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="gemma3_27b",
        num_layers=62,
        hidden_size=5376,
        intermediate_size=21504,
        num_heads=32,
        num_kv_heads=16,
        head_dim=128,
        num_parameters=27_009_346_304,
        vocab_size=262_208,
        max_context=131_072,
        window=1024,
        num_window_layers=52,
        weights_dtype="bfloat16",
    )
