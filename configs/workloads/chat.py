"""A chatbot: users who answer each output, with a history that grows.

As in section 6.5 of the PagedAttention paper (arXiv 2309.06180), a prompt is the newest
1,024 tokens of the conversation. Turns have ShareGPT's lengths; 2 to 8 of them and ten
seconds of thinking are ours, since the paper gives neither.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=200,  # conversations
        seed=0,
        arrival="poisson",
        rate_per_s=0.2,
        structure="chat",
        lengths="sharegpt",
        min_turns=2,
        max_turns=8,
        think_s=10.0,
        max_prompt_tokens=1024,
        too_long="scale",
        scale_from_tokens=2048,
    )
