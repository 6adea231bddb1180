"""Log-normal lengths with long tails: 512 tokens in and 128 out in the mean.

A plain stand-in for services whose lengths are not published; set the means and sigmas to
those of yours. What exceeds the context is cut and counted. Source: ours.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="poisson",
        rate_per_s=1.0,
        structure="single",
        lengths="lognormal",
        input_tokens=512,
        output_tokens=128,
        input_sigma=1.0,
        output_sigma=0.8,
        too_long="clip",
    )
