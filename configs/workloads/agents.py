"""Agents: instructions and tools that sessions share, and many short turns behind them.

Four kinds of agents with prefixes of 2,000 tokens; 5 to 20 turns, each of which brings the
output of a tool (300 tokens in the mean) after one second, and generates 60 tokens. The
numbers are ours; no trace of agents with lengths by turn is public. A session needs up to
16,384 tokens; models with less context get all lengths scaled down.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=100,  # sessions
        seed=0,
        arrival="poisson",
        rate_per_s=0.2,
        structure="agents",
        lengths="lognormal",
        input_tokens=200,  # of the task
        input_sigma=0.8,
        output_tokens=60,
        output_sigma=0.6,
        shared_tokens=2_000,
        num_prefixes=4,
        popularity_exponent=1.0,
        min_turns=5,
        max_turns=20,
        think_s=1.0,
        tool_tokens=300,
        tool_sigma=0.6,
        too_long="scale",
        scale_from_tokens=16_384,
    )
