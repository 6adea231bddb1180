"""OPT-175B (arXiv 2205.01068, Table 1).

The PagedAttention paper (arXiv 2309.06180, Table 1) counts 346 GB of weights, 1 % fewer.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        name="opt_175b",
        num_layers=96,
        hidden_size=12288,
        intermediate_size=49152,
        num_heads=96,
        num_kv_heads=96,
        head_dim=128,
        num_parameters=174_604_468_224,
        vocab_size=50272,
        max_context=2048,
        weights_dtype="bfloat16",
    )
