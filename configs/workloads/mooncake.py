"""Mooncake's trace of conversations: prompts known by hashes of blocks of 512 tokens, so
that it says which requests share which prefix.

12,031 requests in an hour, 12,035 tokens in and 343 out in the mean, at most 126,195 in; a
larger num_requests takes them all. Models with less context get all lengths scaled down,
blocks included, so that what is shared stays shared. Download
https://github.com/kvcache-ai/Mooncake/blob/main/FAST25-release/traces/conversation_trace.jsonl
(Apache-2.0; cite Mooncake, Qin et al., FAST 2025) into data/, or set trace_path.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=1_000,
        seed=0,
        arrival="trace",
        rate_scale=1.0,
        structure="trace",
        trace_path="data/conversation_trace.jsonl",
        trace_format="mooncake",
        too_long="scale",
        scale_from_tokens=131_072,
    )
