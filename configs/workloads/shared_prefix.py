"""One prefix before all prompts, as in figure 16 of the PagedAttention paper.

The paper translates sentences of WMT16 with a prefix of one example (80 tokens) or five
(341; set shared_tokens). Its sentences' lengths are not published: 35 tokens in and 40 out
are round numbers; configs/paper/figure_16.py has those of newstest2016 (`lengths="wmt16"`).
Source: arXiv 2309.06180, section 6.4.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="poisson",
        rate_per_s=10.0,
        structure="shared_prefix",
        shared_tokens=341,
        num_prefixes=1,
        lengths="lognormal",
        input_tokens=35,
        input_sigma=0.5,
        output_tokens=40,
        output_sigma=0.55,
        too_long="scale",
        scale_from_tokens=1024,
    )
