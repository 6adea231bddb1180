"""Figures 16 and 17 compare systems on one workload, and name the right runs."""

import numpy as np
import pytest

from configs.paper import figure_16, figure_16_cpu, figure_17, figure_17_cpu
from paxkv.reproduction.found import Found, Run
from paxkv.reproduction.jobs import jobs_of
from paxkv.workloads.drawing import Workload
from paxkv.workloads.workload_config import WorkloadConfig

OWN = ("num_requests", "rate_per_s", "seed")  # of a run, not of what is asked


def workloads(figure):
    """By case, as runs of the first seed have it."""
    return {
        job.labels["case"]: {
            key: value for key, value in job.config["workload"].items() if key not in OWN
        }
        for job in jobs_of(figure)
        if job.planted is None and job.seed == 0
    }


def sessions_of(figure, case, count):
    config = WorkloadConfig(
        **workloads(figure)[case], num_requests=count, rate_per_s=10, seed=0
    )
    return list(Workload(config, max_context=2048, vocab_size=32_000))


def values(figure, metrics_of):
    """By check, from metrics that are a function of a run's labels."""
    jobs = [job for job in jobs_of(figure) if job.planted is None and job.seed == 0]
    found = Found([Run(labels=j.labels, metrics=metrics_of(j.labels)) for j in jobs])
    return {check.name: check.ours(found) for check in figure.checks}


def test_systems_of_one_ratio_are_asked_the_same():
    sixteen, seventeen = (workloads(m.get_figure()) for m in (figure_16, figure_17))
    for tokens in figure_16.PREFIXES:
        vllm, orca = (sixteen[f"{s}, {tokens} tokens"] for s in figure_16.START_PER_S)
        assert vllm == orca and vllm["shared_tokens"] == tokens
    for share, systems in figure_17.CASES.items():
        asked = [seventeen[figure_17._case(system, share)] for system in systems]
        assert all(each == asked[0] for each in asked)
        assert asked[0]["new_conversations"] == figure_17.SHARES[share]


def test_only_vllm_shares_the_prefix():
    jobs = jobs_of(figure_16.get_figure())
    caching = {
        (job.labels["case"].split(",")[0], job.config["cache"]["prefix_caching"])
        for job in jobs
        if job.planted is None
    }
    assert caching == {("vLLM", True), ("Orca (Oracle)", False)}


def test_requests_of_figure_16_are_a_prefix_and_a_sentence():
    sessions = sessions_of(figure_16.get_figure(), "vLLM, 341 tokens", 150)
    prompts = [session.turns[0].prompt_ids for session in sessions]
    assert len({prompt[:341] for prompt in prompts}) == 1
    assert len({prompt[341:] for prompt in prompts}) == 150
    assert np.mean([len(prompt) - 341 for prompt in prompts]) == pytest.approx(
        27.3, rel=0.1
    )


@pytest.mark.parametrize(("share", "full"), [("full", 0.99), ("0.1", 0.76), ("0.5", 0.23)])
def test_prompts_of_figure_17_are_the_end_of_a_history(share, full):
    case = figure_17._case("vLLM", share)
    sessions = sessions_of(figure_17.get_figure(), case, 150)
    prompts = [len(session.turns[0].prompt_ids) for session in sessions]
    assert max(prompts) == 1024
    assert prompts.count(1024) / 150 == pytest.approx(full, abs=0.09)


def test_ratios_are_of_the_cases_that_they_name():
    capacity = {
        case: 2.0**number for number, case in enumerate(workloads(figure_17.get_figure()))
    }
    found = values(
        figure_17.get_figure(), lambda labels: {"capacity_per_s": capacity[labels["case"]]}
    )
    unequal = next(value for name, value in found.items() if "artifact" in name)
    oracle = capacity["Orca (Oracle), 0.1 new"]
    assert unequal == capacity["vLLM, 0.5 new"] / oracle
    tenth = "vLLM over Orca (Oracle), a tenth new conversations"
    assert found[tenth] == capacity["vLLM, 0.1 new"] / oracle
    # of the three, the last has four times the first
    assert found["the three Orcas apart, all prompts full"] == pytest.approx(300)


def test_hits_on_the_cpu_are_whole_blocks_per_later_request():
    def metrics_of(labels):
        blocks = labels["workload.shared_tokens"] // 16
        return {
            "num_requests": 11,
            "num_cached_tokens": 10 * 16 * blocks,
            "running_mean": 1.0,
            "throughput_tokens_per_s": 1.0,
        }

    figure = figure_16_cpu.get_figure()
    found = values(figure, metrics_of)
    judged = [check for check in figure.checks if check.band]
    assert [found[check.name] for check in judged] == [80, 336]
    assert all(check.band == (found[check.name],) * 2 for check in judged)


def test_scaled_prompts_are_half_the_context_as_the_papers_are():
    """Else the buddy would not round all prompts with their outputs up to the same."""
    trial = figure_17_cpu.get_figure().trial
    workload, context = trial["workload"], trial["engine"]["max_context"]
    assert 2 * workload["max_prompt_tokens"] == workload["scale_from_tokens"]
    assert context & (context - 1) == 0
