"""The knob that is named for each cause, and for each kind of queue."""

import pytest

from paxkv.analysis.diagnosis.advice import Evidence, advise
from paxkv.analysis.diagnosis.causes import diagnose
from tests.paxkv.analysis.diagnosis.synthetic import FLOOR, alike, config, metrics

WORK = {"own_prefill": 0.05, "decode": 0.01}


def named(cause, metric, row_metrics=None, row_config=None, **record):
    """The advice on p95 of requests that `cause` made slow."""
    work = {c: s for c, s in WORK.items() if c != cause}
    records = alike(100, {**work, cause: 1.0}, {"decode": 0.1, cause: 1.0}, **record)
    (finding,) = [f for f in diagnose(records, FLOOR, (95,)) if f.metric == metric]
    evidence = Evidence(config=row_config or config(), metrics=row_metrics or metrics())
    assert finding.cause == cause
    return advise(finding, evidence)


@pytest.mark.parametrize(
    ("cause", "metric", "name"),
    [
        ("prefill_interference", "tpot", "smaller_budget"),
        ("prefill_interference", "ttft", "more_replicas"),
        ("decode", "tpot", "fewer_rows"),
        ("decode", "ttft", "fewer_rows"),
        ("recompute", "tpot", "reserve"),
        ("recompute", "ttft", "more_blocks"),
        ("host", "tpot", "fewer_rows"),
        ("host", "ttft", "fewer_rows"),
        ("queueing", "tpot", "larger_budget"),
    ],
)
def test_a_knob_per_cause(cause, metric, name):
    assert named(cause, metric).name == name


@pytest.mark.parametrize("cause", ["decode", "host"])
@pytest.mark.parametrize(("share", "name"), [(0.9, "reserve"), (0.5, "fewer_rows")])
def test_preemptions_that_cost_nearly_as_much_are_ended(cause, share, name):
    causes = {"decode": 0.1} | {cause: 1.1} | {"recompute": share}
    records = alike(100, WORK, causes)
    (finding,) = [f for f in diagnose(records, FLOOR, (95,)) if f.metric == "tpot"]
    assert finding.cause == cause
    evidence = Evidence(config=config(), metrics=metrics(num_preemptions=9))
    assert advise(finding, evidence).name == name


@pytest.mark.parametrize("cause", ["decode", "host"])
def test_prompts_of_several_steps_want_larger_steps(cause):
    assert named(cause, "ttft", num_prompt_tokens=2000).name == "larger_budget"
    cached = named(cause, "ttft", num_prompt_tokens=2000, num_cached_tokens=1900)
    assert cached.name == "fewer_rows"


@pytest.mark.parametrize(
    ("row_metrics", "row_config", "name"),
    [
        (metrics(free=3.0), config(), "more_blocks"),
        (metrics(free=3.0), config(cache__num_blocks=None), "more_chips"),
        (metrics(free=3.0, tail=30.0), config(), "smaller_blocks"),
        (metrics(free=3.0, tail=30.0), config(cache__block_size=1), "more_blocks"),
        (metrics(free=50.0, capacity=63.0), config(), "more_rows"),
        (metrics(free=50.0, capacity=63.0, tail=40.0), config(), "more_rows"),
        (metrics(free=3.0, capacity=63.0), config(), "more_blocks"),  # rows would not help
        (metrics(free=50.0, capacity=20.0), config(), "more_replicas"),
        (
            metrics(free=40.0, unusable_free_percent=39.0),
            config(cache__allocator="contiguous_pow2", cache__prefix_caching=False),
            "paged",
        ),
    ],
)
def test_queues_are_told_apart_by_counters(row_metrics, row_config, name):
    advice = named("queueing", "ttft", row_metrics, row_config)
    assert advice.name == name, advice.why


def test_a_queue_that_no_step_saw_is_the_steps_length():
    none = dict.fromkeys(metrics()["partition_percent"])
    never = metrics(num_queue_steps=0, capacity=None, unusable_free_percent=None)
    never["partition_percent"] = none
    assert named("queueing", "ttft", never).name == "more_replicas"


def test_swaps_of_victims_and_of_cached_blocks():
    victims = config(scheduler__pressure="preempt_swap", cache__host_blocks=9)
    assert named("swap", "tpot", row_config=victims).name == "recompute"
    cached = config(cache__prefix_caching=True, cache__host_blocks=9)
    assert named("swap", "tpot", row_config=cached).name == "no_host_tier"
    assert named("swap", "tpot").name == "larger_blocks"


def test_communication_between_chips_or_replicas():
    assert named(
        "communication", "tpot", row_config=config(hardware__num_chips=8)
    ).name == ("fewer_chips")
    replicas = config(router__num_replicas=4)
    assert named("communication", "ttft", row_config=replicas).name == "route_by_prefix"
    nothing = named("communication", "ttft")
    assert nothing.name is None and nothing.knob is None


def test_at_the_floor_only_less_work_helps():
    (first, *_) = diagnose(alike(9, WORK), FLOOR, (95,))
    evidence = Evidence(config=config(), metrics=metrics())
    assert advise(first, evidence).name == "more_chips"
    (again, *_) = diagnose(alike(9, WORK, turn=2), FLOOR, (95,))
    assert advise(again, evidence).name == "prefix_caching"
    cached = Evidence(config=config(cache__prefix_caching=True), metrics=metrics())
    assert advise(again, cached).name == "more_chips"
