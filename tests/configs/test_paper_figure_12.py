"""Figure 12: which cell of its panels is which, and what is read off them."""

import pytest

from configs.paper import figure_12a, figure_12bc, figure_12def
from paxkv.reproduction.found import Found, Run
from paxkv.reproduction.jobs import jobs_of

PANELS = {  # model, chips, workload, blocks of 16 tokens in the memory of Table 1
    "12a": ("opt_13b", 1, "sharegpt", 12 * 2**30 // (16 * 819_200)),
    "12b": ("opt_66b", 4, "sharegpt", 21 * 2**30 // (16 * 2_359_296)),
    "12c": ("opt_175b", 8, "sharegpt", 264 * 2**30 // (16 * 4_718_592)),
    "12d": ("opt_13b", 1, "alpaca", 12 * 2**30 // (16 * 819_200)),
    "12e": ("opt_66b", 4, "alpaca", 21 * 2**30 // (16 * 2_359_296)),
    "12f": ("opt_175b", 8, "alpaca", 264 * 2**30 // (16 * 4_718_592)),
}
ALLOCATORS = {
    "FasterTransformer": "contiguous_max",
    "Orca (Max)": "contiguous_max",
    "Orca (Pow2)": "contiguous_pow2",
    "Orca (Oracle)": "contiguous_oracle",
    "vLLM": "paged",
}


@pytest.mark.parametrize("module", [figure_12a, figure_12bc, figure_12def])
def test_a_run_has_the_panels_model_and_the_systems_policies(module):
    for job in jobs_of(module.get_figure()):
        if job.planted is not None:
            continue
        panel, run = job.labels["run"].split(", ", maxsplit=1)
        system = next(one for one in ALLOCATORS if one in run)
        config = job.config
        model, num_chips, lengths, num_blocks = PANELS[panel]
        assert config["model"]["name"] == model
        assert config["hardware"]["num_chips"] == num_chips
        assert config["workload"]["lengths"] == lengths
        assert config["cache"]["num_blocks"] == num_blocks + 1
        assert config["cache"]["allocator"] == ALLOCATORS[system]
        is_batched = config["scheduler"]["batching"] == "request"
        assert is_batched == (system == "FasterTransformer")
        is_slower = config["hardware"]["collective_latency_s"] is not None
        assert is_slower == ("collective" in run)


def test_gains_of_panels_are_quotients_of_their_ratios():
    per_s = {"12d": (20.0, 26.0), "12e": (10.0, 16.0), "12f": (20.0, 21.0)}
    runs = [
        Run(labels={"run": f"{panel}, {system}"}, metrics={"capacity_per_s": rate})
        for panel, rates in per_s.items()
        for system, rate in zip(("Orca (Oracle)", "vLLM"), rates, strict=True)
    ]
    ours = {
        check.name: check.ours(Found(runs)) for check in figure_12def.get_figure().checks
    }
    assert ours["12d: vLLM over Orca (Oracle)"] == pytest.approx(1.3)
    assert ours["gain of 12e over 12d's"] == pytest.approx(1.6 / 1.3)
    assert ours["gain of 12f over 12d's"] == pytest.approx(1.05 / 1.3)
