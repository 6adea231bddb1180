"""Gemma-3-270M (google/gemma-3-270m, config.json).

Of six layers, five see 512 tokens and the sixth sees all: 15 of 18 have the window.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="gemma3_270m",
        num_layers=18,
        hidden_size=640,
        intermediate_size=2048,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        num_parameters=268_098_176,
        vocab_size=262_144,
        max_context=32768,
        window=512,
        num_window_layers=15,
        weights_dtype="bfloat16",
    )
