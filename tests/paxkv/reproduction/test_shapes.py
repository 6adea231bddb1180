"""Lengths of a workload that can be told by hand."""

from configs import trial
from paxkv.reproduction.shapes import drawn_shape


def test_three_turns_of_fixed_lengths():
    tree = trial.get_config("recall,cpu,chat").to_dict()
    tree["model"]["max_context"] = 1_000
    tree["workload"] |= {
        "lengths": "fixed",
        "input_tokens": 10,
        "output_tokens": 5,
        "min_turns": 3,
        "max_turns": 3,
        "max_prompt_tokens": None,
        "too_long": "refuse",
    }
    # prompts of 10, 25 and 40 tokens, of which 0, 15 and 30 were said before
    prompts_mean, prompts_p50, _, outputs_mean, _, _, known = drawn_shape(tree, 4)
    assert (prompts_mean, prompts_p50, outputs_mean) == (25, 25, 5)
    assert known == 60
