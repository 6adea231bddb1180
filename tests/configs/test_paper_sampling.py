"""What figure 15 measures: blocks that samples and beams share, counted by hand."""

import numpy as np
import pytest

from configs.paper import figure_14, figure_14_host, figure_15_cpu
from paxkv.analysis.waste import summarize_waste
from paxkv.reproduction.found import Found, Run
from paxkv.reproduction.judging import in_band
from paxkv.sweeps.grid import flat
from paxkv.types import PoolPartition, StepMetrics, StepResult
from tests.fakes import make_request, make_scheduler
from tests.trials import make_trial, run_trial


def partition_after(scheduler, request, steps):
    assert scheduler.add(request) == []
    partitions = []
    for _ in range(steps):
        plan = scheduler.plan(0.0)
        tokens = np.ones(len(plan.rows), np.int32)
        scheduler.commit(plan, StepResult(tokens=tokens, duration_s=0.0), 0.0)
        partitions += plan.partitions
    return partitions[-1]


def test_logical_positions_count_a_shared_block_for_each_sample():
    # 6 prompt tokens in blocks of 4: each of 3 samples has 2 blocks, of which all share
    # the first; sample 0 has copied the second, 1 and 2 share it still
    partition = partition_after(make_scheduler(), make_request(6, 4, n=3), steps=2)
    assert partition.logical == 3 * 2 * 4
    assert partition.token_states + partition.tail == 4 * 4


def test_regions_are_not_shared():
    scheduler = make_scheduler(allocator="contiguous_oracle", num_blocks=65)
    partition = partition_after(scheduler, make_request(6, 4, n=3), steps=2)
    assert partition.logical == partition.total - partition.free > 0


def test_saving_is_of_the_mean_over_steps_that_hold_blocks():
    def step(logical, held):
        classes = dict.fromkeys(("tail", "reserved", "internal", "rounding", "cached"), 0)
        part = PoolPartition(
            token_states=held, free=100 - held, unusable_free=0, logical=logical, **classes
        )
        return StepMetrics(
            step=0,
            now_s=0.0,
            duration_s=0.1,
            host_s=0.0,
            num_prefill_tokens=0,
            num_decode_tokens=0,
            num_running=0,
            num_waiting=0,
            num_preempted=0,
            partitions=(part,),
            table_bytes=0,
        )

    summary = summarize_waste([step(60, 40), step(10, 10), step(0, 0)])
    assert summary.sharing_saved_percent == pytest.approx(100 * (1 - 1 / 1.25))


def test_quiet_steps_save_the_same():
    trial = make_trial(
        "opt_13b,a100_40,vllm_2023,alpaca",
        workload__num_requests=6,
        workload__num_samples=3,
        workload__rate_per_s=4.0,
        cache__num_blocks=200,
    )
    quiet, plain = (
        run_trial(trial, takes_quiet_steps=taken)[0].metrics for taken in (True, False)
    )
    assert quiet["num_steps"] == plain["num_steps"]
    saved = quiet["sharing_saved_percent"]
    assert saved == pytest.approx(plain["sharing_saved_percent"], rel=1e-9)
    assert saved > 1


def test_a_rise_that_is_missing_shows():
    def beams(*percents):
        kinds = zip(figure_15_cpu.BEAMS, percents, strict=True)
        return Found(
            [
                Run(labels={"kind": k}, metrics={"sharing_saved_percent": p})
                for k, p in kinds
            ]
        )

    (rise,) = [c for c in figure_15_cpu.get_figure().checks if "rise" in c.name]
    assert rise.ours(beams(37.0, 53.0, 55.0)) == 2.0
    assert rise.ours(beams(37.0, 36.0, 55.0)) == -1.0


def capacities(gain_of_samples, gain_of_beams):
    """Runs in which vLLM has 1 + gain · width times Orca's capacity."""
    gains = {"parallel": gain_of_samples, "beam": gain_of_beams}
    return Found(
        [
            Run(
                labels={"run": figure_14.label(system, kind, width)},
                metrics={"capacity_per_s": 2.0 * (1 + is_vllm * gain * width)},
            )
            for system, is_vllm in (("vLLM", 1), ("Orca (Oracle)", 0))
            for kind, gain in gains.items()
            for width in figure_14.WIDTHS
        ]
    )


def test_ratios_are_of_vllm_over_orca():
    checks = figure_14.get_figure().checks
    ours = {check.name: check.ours(capacities(0.1, 0.25)) for check in checks}
    assert ours["beam 6"] == pytest.approx(2.5)
    assert ours["parallel: smallest rise with the samples"] == pytest.approx(0.2)
    assert ours["beam over parallel, smallest lead"] == pytest.approx(0.3)


@pytest.mark.parametrize("gains, is_right", [((0.1, 0.25), True), ((-0.01, -0.02), False)])
def test_bands_take_what_rises_and_leads_and_nothing_that_falls(gains, is_right):
    banded = [check for check in figure_14.get_figure().checks if check.band]
    assert len(banded) == 4
    found = capacities(*gains)
    assert all(in_band(check, check.ours(found)) == is_right for check in banded)


def test_the_cheaper_host_changes_nothing_else():
    figure, other = figure_14.get_figure(), figure_14_host.get_figure()
    (changed,) = set(flat(other.trial).items()) - set(flat(figure.trial).items())
    assert changed == ("hardware.host_s_per_seq", 3e-5)
    for run, choice in other.choices["run"].items():
        same = {key: part for key, part in choice.items() if key != "search"}
        assert same.items() <= figure.choices["run"][run].items()
