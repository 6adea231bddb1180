"""DeepSeek-V3 (arXiv 2412.19437, §4.2; deepseek-ai/DeepSeek-V3, config.json), in float8.

A token stores 512 numbers of K and V at once and 64 with its position, per layer. Eight of
256 experts meet a token in 58 of 61 layers. The layer that predicts further tokens is
left out.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="deepseek_v3",
        num_layers=61,
        hidden_size=7168,
        intermediate_size=18432,
        num_heads=128,
        num_kv_heads=128,
        head_dim=192,
        value_dim=128,
        latent_dim=576,
        latent_value_dim=512,
        num_parameters=671_026_419_200,
        num_active_parameters=37_552_297_472,
        num_experts=256,
        experts_per_token=8,
        vocab_size=129_280,
        max_context=163_840,
        weights_dtype="float8_e4m3fn",
    )
