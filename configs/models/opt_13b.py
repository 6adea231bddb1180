"""OPT-13B (arXiv 2205.01068, Table 1; facebook/opt-13b, config.json).

Its K and V take 819,200 bytes a token, 800 KiB as in Table 1 of the PagedAttention paper
(arXiv 2309.06180).
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="opt_13b",
        num_layers=40,
        hidden_size=5120,
        intermediate_size=20480,
        num_heads=40,
        num_kv_heads=40,
        head_dim=128,
        num_parameters=12_853_473_280,
        vocab_size=50272,
        max_context=2048,
        weights_dtype="bfloat16",
    )
