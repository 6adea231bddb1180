"""Alpaca's lengths, one request a user, as in figure 12 of the PagedAttention paper.

Short prompts and outputs: 19 and 58 tokens in the mean, as in figure 11. Only the means are
published; the log-normal shapes are fitted (paxkv/workloads/lengths.py).
Source: arXiv 2309.06180, section 6.1.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="poisson",
        rate_per_s=10.0,
        structure="single",
        lengths="alpaca",
        too_long="scale",
    )
