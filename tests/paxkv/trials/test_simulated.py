"""Laws that hold in every simulated run, whatever the policies are."""

from dataclasses import replace

import pytest

from paxkv.analysis.request_records import CAUSES
from paxkv.analysis.trial_table import trial_table
from paxkv.events import EventKind
from paxkv.scheduler import Scheduler
from tests.trials import make_trial, run_trial

NUM_REQUESTS = 40
SMALL = {
    "cache__num_blocks": 40,
    "engine__max_context": 256,
    "scheduler__max_num_seqs": 16,
    "scheduler__max_num_batched_tokens": 256,
    "workload__num_requests": NUM_REQUESTS,
    "workload__arrival": "poisson",
    "workload__rate_per_s": 8.0,
    "workload__lengths": "lognormal",
    "workload__input_tokens": 60,
    "workload__output_tokens": 30,
    "workload__too_long": "clip",
}
# what takes other ways through scheduler and allocator
SYSTEMS = {
    "vllm_v1": {},
    "vllm_2023": {},
    "orca_max": {},
    "orca_oracle": {},
    "sglang": {},
    "faster_transformer": {},
    "trtllm_no_evict": {},
    "prefixes": {"cache__prefix_caching": True, "cache__granularity": "token"},
    "swap": {
        "cache__host_blocks": 100,
        "scheduler__pressure": "preempt_swap",
        "scheduler__watermark": 0.0,
    },
    "chunks": {"scheduler__max_num_batched_tokens": 64},
    "reject": {"scheduler__pressure": "reject"},
    "by force": {"scheduler__preempt_every": 7},
}


def trial_of(name: str, **overrides):
    parts = name if not SYSTEMS[name] and name != "vllm_v1" else "vllm_v1"
    return make_trial(parts, **{**SMALL, **SYSTEMS[name], **overrides})


def flat(tree, prefix="") -> dict:
    """All numbers of metrics but how long they took, by path."""
    found = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif name != "wall_s" and not isinstance(value, list):
            found[prefix + name] = value
    return found


@pytest.fixture(scope="module", params=SYSTEMS)
def run(request):
    return run_trial(trial_of(request.param))


def test_every_request_ends_once(run):
    outcome, records, _ = run
    assert sorted(record.request_id for record in records) == [*range(NUM_REQUESTS)]
    metrics = outcome.metrics
    ended = metrics["num_finished"] + metrics["num_rejected"] + metrics["num_aborted"]
    assert ended == metrics["num_requests"] == NUM_REQUESTS


def test_time_is_conserved(run):
    _, records, _ = run
    for record in records:
        assert {*record.ttft_causes_s, *record.decode_causes_s} <= {*CAUSES}
        first_s = sum(record.ttft_causes_s.values())
        after_s = sum(record.decode_causes_s.values())
        assert first_s + after_s == pytest.approx(record.finish_s - record.arrival_s)
        if record.ttft_s is not None:
            assert first_s == pytest.approx(record.ttft_s)
        assert all(seconds > -1e-9 for seconds in record.ttft_causes_s.values())
        assert all(seconds > -1e-9 for seconds in record.decode_causes_s.values())


def test_steps_fill_the_time_that_somebody_is_there(run):
    outcome, _, events = run
    metrics = outcome.metrics
    parts = ("prefill_s", "decode_s", "swap_s", "copy_s", "communication_s", "host_s")
    busy_s = sum(metrics[name] for name in parts)
    assert 0 < busy_s <= metrics["duration_s"] * (1 + 1e-9)
    spent_s = sum(event.duration_s for event in events if event.kind is EventKind.STEP)
    assert spent_s + metrics["host_s"] == pytest.approx(busy_s)


def test_tokens_are_conserved(run):
    outcome, records, events = run
    computed = sum(event.num_tokens for event in events if event.kind is EventKind.STEP)
    metrics = outcome.metrics
    assert computed == metrics["num_prefill_tokens"] + metrics["num_decode_tokens"]
    # of a sequence all tokens but the last, less what was found in the cache
    needed = sum(
        record.num_prompt_tokens + record.num_output_tokens - 1 - record.num_cached_tokens
        for record in records
        if record.first_token_s is not None
    )
    again = sum(record.num_recomputed_tokens for record in records)
    given_up = sum(record.reason != "LENGTH" for record in records)
    if not given_up:
        assert computed == needed + again


@pytest.mark.parametrize("name", SYSTEMS)
def test_littles_law(name):
    """Mean requests in the system are their rate times their mean time there (Little 1961):
    the first counted by the scheduler step by step, the second by the requests' clocks."""
    profile, kept = "ideal", []  # whose host takes no time
    trial = trial_of(name, workload__num_requests=60)
    outcome, records, _ = run_trial(trial, profile, on_step=kept.append)
    in_system = sum((x.num_running + x.num_waiting) * x.duration_s for x in kept)
    inside_s = sum(record.finish_s - record.arrival_s for record in records)
    # a request that comes during a step is in the system before the scheduler counts it
    unseen_s = len(records) * max(step.duration_s for step in kept)
    assert in_system <= inside_s * (1 + 1e-9)
    assert in_system + unseen_s >= inside_s
    assert unseen_s < 0.1 * inside_s
    mean, rate = (
        in_system / outcome.metrics["duration_s"],
        len(records) / (outcome.metrics["duration_s"]),
    )
    assert mean == pytest.approx(rate * inside_s / len(records), rel=0.1)


WITH_A_QUEUE = ("vllm_2023", "orca_max", "faster_transformer", "trtllm_no_evict", "swap")


@pytest.mark.parametrize(
    ("name", "rate_per_s"),
    [*((name, 2.0) for name in SYSTEMS), *((name, 40.0) for name in WITH_A_QUEUE)],
)
def test_quiet_steps_change_nothing(name, rate_per_s):
    trial = trial_of(name, workload__num_requests=20, workload__rate_per_s=rate_per_s)
    quiet, quiet_records, quiet_events = run_trial(trial)
    plain, plain_records, plain_events = run_trial(trial, takes_quiet_steps=False)
    assert quiet_events == plain_events
    times = [(one.arrival_s, one.first_token_s, one.finish_s) for one in quiet_records]
    assert times == [
        (one.arrival_s, one.first_token_s, one.finish_s) for one in plain_records
    ]
    found, expected = flat(quiet.metrics), flat(plain.metrics)
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert quiet.metrics["timeline"] == plain.metrics["timeline"]


@pytest.fixture
def plans(monkeypatch):
    """When steps were planned, in seconds of the virtual clock."""
    times_s = []
    plan = Scheduler.plan

    def told(self, now_s):
        times_s.append(now_s)
        return plan(self, now_s)

    monkeypatch.setattr(Scheduler, "plan", told)
    return times_s


def test_most_steps_of_a_quiet_service_are_not_planned(plans):
    trial = trial_of(
        "prefixes",
        workload__num_requests=10,
        workload__rate_per_s=0.2,
        workload__lengths="fixed",
        workload__output_tokens=100,
    )
    metrics = run_trial(trial)[0].metrics
    assert metrics["num_steps"] > 500
    # a prompt's step, the one after it and the last of each request, and arrivals
    assert len(plans) <= 6 * 10


@pytest.mark.parametrize("name", ["orca_max", "vllm_2023", "faster_transformer"])
def test_a_queue_that_stands_does_not_disturb(name, plans):
    trial = trial_of(
        name,
        workload__num_requests=12,
        workload__arrival="at_once",
        workload__lengths="fixed",
        workload__output_tokens=100,
    )
    metrics = run_trial(trial)[0].metrics
    assert metrics["num_queue_steps"] > 100
    assert len(plans) < 0.25 * metrics["num_steps"]


def test_same_seed_same_result():
    trial = trial_of(
        "prefixes",
        workload__structure="chat",
        workload__max_turns=4,
        workload__num_requests=8,
    )
    first, second = run_trial(trial), run_trial(trial)
    assert first[1:] == second[1:]
    same = {k: v for k, v in first[0].metrics.items() if k != "wall_s"}
    assert repr(same) == repr({k: second[0].metrics[k] for k in same})
    other = replace(trial, workload=replace(trial.workload, seed=1))
    assert run_trial(other)[1] != first[1]


def test_twice_the_trace_takes_twice_the_steps():
    steps = [
        run_trial(
            trial_of(
                "vllm_2023",
                workload__num_requests=count,
                workload__arrival="uniform",
                workload__lengths="fixed",
                workload__output_tokens=24,
            )
        )[0].metrics["num_steps"]
        for count in (40, 80)
    ]
    assert steps[1] / steps[0] == pytest.approx(2.0, rel=0.1)


def test_the_pool_is_what_the_chips_have_room_for():
    outcome, _, _ = run_trial(make_trial("llama3_8b,h100", workload__num_requests=1))
    assert outcome.pool["num_blocks"] > 10_000
    with pytest.raises(ValueError, match="Raise hardware.num_chips"):
        run_trial(make_trial("llama3_70b,tpu_v5e", workload__num_requests=3))
    with pytest.raises(ValueError, match="disk_folder"):
        run_trial(
            make_trial(
                cache__num_blocks=100,
                cache__disk_folder="x",
                cache__host_blocks=8,
                cache__prefix_caching=True,
            )
        )


def test_what_is_measured_can_begin_late_and_end_early():
    whole = run_trial(trial_of("vllm_2023"))[0].metrics
    part = run_trial(trial_of("vllm_2023", measure__from_s=1.0, measure__until_s=3.0))[
        0
    ].metrics
    assert 0 < part["num_finished"] < whole["num_finished"]
    assert 0 < part["num_steps"] < whole["num_steps"]
    assert part["num_requests"] == whole["num_requests"]


def test_a_run_without_a_step_has_all_metrics():
    outcome, records, _ = run_trial(trial_of("vllm_v1", cache__num_blocks=2))
    assert outcome.metrics["num_rejected"] == len(records) == NUM_REQUESTS
    parts = ("prefill_s", "decode_s", "swap_s", "copy_s", "communication_s", "host_s")
    assert [outcome.metrics[name] for name in parts] == [0.0] * len(parts)
    assert trial_table([{"profile": "calibrated", "metrics": outcome.metrics}])


@pytest.mark.parametrize("output_tokens", [1, 2, 8])
def test_beams_have_a_time_for_each_token(output_tokens):
    trial = trial_of(
        "vllm_v1",
        workload__num_requests=1,
        workload__lengths="fixed",
        workload__output_tokens=output_tokens,
        workload__use_beam_search=True,
        workload__num_samples=3,
    )
    outcome, records, _ = run_trial(trial)
    assert [record.num_output_tokens for record in records] == [output_tokens] * 3
    latency = outcome.metrics["latency"]
    assert latency["ttft_s"]["p50"] == pytest.approx(records[0].ttft_s, rel=0.01)
    after_s = records[0].finish_s - records[0].first_token_s
    if output_tokens > 1:
        tpot_s = after_s / (output_tokens - 1)
        assert latency["tpot_s"]["p50"] == pytest.approx(tpot_s, rel=0.01)
    else:
        assert after_s == 0.0


@pytest.mark.parametrize("takes_quiet_steps", [True, False])
@pytest.mark.parametrize("width", [1, 3])
def test_beams_take_a_step_a_token(width, takes_quiet_steps):
    trial = trial_of(
        "vllm_v1",
        engine__check_invariants=True,
        workload__num_requests=2,
        workload__lengths="fixed",
        workload__output_tokens=8,
        workload__use_beam_search=True,
        workload__num_samples=width,
    )
    outcome, records, _ = run_trial(trial, takes_quiet_steps=takes_quiet_steps)
    assert [record.reason for record in records] == ["LENGTH"] * 2 * width
    assert all(record.num_output_tokens == 8 for record in records)
    # the first token of a search comes with its prompt
    assert outcome.metrics["num_decode_tokens"] == 2 * 7 * width


def test_what_was_not_served_as_asked_is_told():
    outcome, _, _ = run_trial(trial_of("vllm_v1", engine__max_context=100))
    num_clipped = outcome.metrics["num_clipped"]
    assert 0 < num_clipped < NUM_REQUESTS
    assert outcome.notes == (f"{num_clipped} sessions were cut to fit in the context.",)
    assert outcome.metrics["num_dropped"] == outcome.metrics["num_malformed"] == 0


def test_a_profile_is_named_once():
    with pytest.raises(ValueError, match="names one twice"):
        make_trial(profiles=("ideal", "ideal"))
