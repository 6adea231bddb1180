import numpy as np
import pytest

from paxkv import recall
from paxkv.workloads.lengths import scale_lengths, sharegpt_lengths
from paxkv.workloads.recall_workload import recall_workload, score_recall
from paxkv.workloads.workload_config import WorkloadConfig


def test_recall_workload_fits_and_scores():
    config = WorkloadConfig(num_requests=300, seed=3)
    workload = recall_workload(config, 1024)
    assert workload == recall_workload(config, 1024), "not a function of the seed"
    assert len(workload.sessions) == len(workload.turns) == 300
    assert all(session.arrival_s == 0 for session in workload.sessions)
    outputs = []
    for turn, prompt in zip(workload.turns, workload.prompts, strict=True):
        assert turn.prompt_ids == prompt.prompt_ids
        assert len(turn.prompt_ids) + turn.max_tokens <= 1024
        assert turn.max_tokens >= recall.VALUE_LEN
        outputs.append(list(prompt.answer_ids[: turn.max_tokens]))
    inputs, drawn = sharegpt_lengths(np.random.default_rng(3), 300)
    too_short = (scale_lengths(inputs, 1024) < 10) | (scale_lengths(drawn, 1024) < 2)
    assert workload.num_raised == too_short.sum() > 0
    right, answered = score_recall(workload.prompts, outputs)
    assert right == answered >= 300
    outputs[0][0] ^= 1
    assert score_recall(workload.prompts, outputs) == (right - 1, answered)


def test_the_tokens_of_a_seed_stay_the_same():
    """Tables in the README were made from these."""
    workload = recall_workload(WorkloadConfig(num_requests=48), 1024)
    assert sum(len(turn.prompt_ids) for turn in workload.turns) == 4_356
    assert sum(turn.max_tokens for turn in workload.turns) == 9_887


def test_arrivals_are_those_of_the_config():
    config = WorkloadConfig(num_requests=2_000, arrival="poisson", rate_per_s=4.0)
    sessions = recall_workload(config, 1024).sessions
    times_s = [session.arrival_s for session in sessions]
    assert times_s == sorted(times_s)
    assert times_s[-1] == pytest.approx(500, rel=0.1)


def test_a_context_too_short_is_named():
    with pytest.raises(ValueError, match="max_context=8"):
        recall_workload(WorkloadConfig(num_requests=1), 8)


@pytest.mark.parametrize(
    "settings", [{"lengths": "alpaca"}, {"structure": "rag", "lengths": "fixed"}]
)
def test_other_workloads_have_no_answers(settings):
    with pytest.raises(ValueError, match="recall prompts need structure='single'"):
        recall_workload(WorkloadConfig(num_requests=1, **settings), 1024)


@pytest.mark.parametrize(
    "settings", [{"num_samples": 2}, {"use_beam_search": True}, {"max_prompt_tokens": 64}]
)
def test_what_answers_cannot_have_is_refused(settings):
    with pytest.raises(ValueError, match="recall prompts have one output and are whole"):
        recall_workload(WorkloadConfig(num_requests=1, **settings), 1024)
