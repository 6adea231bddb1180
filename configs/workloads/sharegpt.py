"""ShareGPT's lengths, one request a user, as in figure 12 of the PagedAttention paper.

Lengths are drawn from the quantiles of the first turns of ShareGPT (March 2023, OPT's
tokenizer, prompt and output together below 2,048 tokens): 161 and 338 tokens in the mean,
as in figure 11. A model with a shorter context gets them scaled down.
Source: arXiv 2309.06180, section 6.1; paxkv/assets/sharegpt_quantiles.json.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="poisson",
        rate_per_s=1.0,
        structure="single",
        lengths="sharegpt",
        too_long="scale",
    )
