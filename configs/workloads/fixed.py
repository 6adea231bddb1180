"""64 equal requests at once: 512 tokens in, 128 out.

Nothing is random, so that whatever changes between two runs is the system's. Source: ours.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=64,
        seed=0,
        arrival="at_once",
        structure="single",
        lengths="fixed",
        input_tokens=512,
        output_tokens=128,
        too_long="scale",
        scale_from_tokens=1024,
    )
