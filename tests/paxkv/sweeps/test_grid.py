"""Cells are the product of the axes and the seeds, each with an id that stays."""

import pytest

from paxkv.sweeps.grid import (
    SweepConfig,
    cell_id,
    flags_of,
    flat,
    make_cells,
    nested,
)

CONFIG = {
    "name": "trial",
    "output_folder": "results/x",
    "cache": {"block_size": 16, "host_blocks": 0, "num_blocks": None},
    "scheduler": {"watermark": 0.01, "pressure": "wait", "retain": ("completed",)},
    "workload": {"seed": 0, "num_requests": 10},
}
CHOICES = {
    "preemption": {
        "recompute": {"scheduler": {"pressure": "preempt_recompute"}},
        "swap": {"scheduler": {"pressure": "preempt_swap"}, "cache": {"host_blocks": 64}},
    }
}


def sweep(grid: dict, seeds: tuple[int, ...] = (0,), choices: dict | None = None):
    return SweepConfig(kind="simulated", seeds=seeds, grid=grid, choices=choices or {})


def test_cells_are_the_product_of_axes_and_seeds():
    grid = {"cache": {"block_size": (8, 16)}, "scheduler": {"watermark": (0, 0.01)}}
    cells = make_cells(CONFIG, sweep(grid, seeds=(0, 3)))
    told = [(*cell.labels.values(), cell.seed) for cell in cells]
    assert told == [
        (8, 0, 0), (8, 0, 3), (8, 0.01, 0), (8, 0.01, 3),
        (16, 0, 0), (16, 0, 3), (16, 0.01, 0), (16, 0.01, 3),
    ]  # fmt: skip
    assert len({cell.cell_id for cell in cells}) == 8
    first = cells[1]
    assert first.labels == {"cache.block_size": 8, "scheduler.watermark": 0}
    assert first.name == "block_size=8, watermark=0"
    # a flag would make a float of the 0, so the cell has one too
    assert first.overrides == {
        "cache.block_size": 8,
        "scheduler.watermark": 0.0,
        "workload.seed": 3,
    }
    assert isinstance(first.config["scheduler"]["watermark"], float)
    assert first.config["workload"] == {"seed": 3, "num_requests": 10}
    assert cells[-2].overrides == {}  # what the config has anyway needs no flag
    assert CONFIG["cache"]["block_size"] == 16


def test_a_choice_sets_several_keys():
    grid = {"preemption": ("swap", "recompute")}
    swap, recompute = make_cells(CONFIG, sweep(grid, choices=CHOICES))
    assert swap.labels == {"preemption": "swap"}
    assert swap.overrides == {"scheduler.pressure": "preempt_swap", "cache.host_blocks": 64}
    assert recompute.name == "preemption=recompute"
    assert recompute.config["cache"]["host_blocks"] == 0


def test_without_axes_there_is_a_cell_for_each_seed():
    cells = make_cells(CONFIG, sweep({}, seeds=(1, 2)))
    assert [cell.overrides for cell in cells] == [
        {"workload.seed": 1},
        {"workload.seed": 2},
    ]
    assert cells[0].name == ""


def test_an_id_is_that_of_what_decides_the_result():
    id_before = cell_id(CONFIG, "simulated")
    assert (
        id_before == "4f91a7aeefbb"
    )  # a table that was written before must be found again
    turned = dict(reversed(CONFIG.items()))
    renamed = {**turned, "name": "other", "output_folder": "elsewhere", "sweep": {"x": 1}}
    assert cell_id(renamed, "simulated") == id_before
    assert cell_id(CONFIG, "measured") != id_before
    assert cell_id(CONFIG, "simulated", ("--score_keys",)) != id_before
    assert cell_id({**CONFIG, "workload": {"seed": 1}}, "simulated") != id_before


def test_another_schema_has_other_ids(monkeypatch):
    id_before = cell_id(CONFIG, "simulated")
    monkeypatch.setattr("paxkv.results.SCHEMA_VERSION", 2)
    assert cell_id(CONFIG, "simulated") != id_before


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"cache": {"block_sizes": (8,)}}, "nearest: cache.block_size"),
        ({"cache": {"block_size": ()}}, r"block_size=\(\) must be a tuple of at least one"),
        ({"cache": {"block_size": 8}}, "block_size=8 must be a tuple"),
        ({"cache": {"block_size": ("8",)}}, "'8', a str; the config has 16, a int"),
        ({"cache": {"block_size": (8.0,)}}, "8.0, a float; the config has 16, a int"),
        ({"cache": {"host_blocks": (None,)}}, "no flag can make it None"),
        ({"cache": {"block_size": (8, 8)}}, "of seed 0 are the same run"),
        ({"preemption": ("drop",)}, "'drop', which sweep.choices.preemption lacks; it has "
                                    "recompute, swap"),
        (
            {"preemption": ("swap",), "scheduler": {"pressure": ("wait",)}},
            "axes preemption and scheduler.pressure both set scheduler.pressure",
        ),
    ],
)  # fmt: skip
def test_a_grid_that_cannot_run_is_refused(grid, message):
    with pytest.raises(ValueError, match=message):
        make_cells(CONFIG, sweep(grid, choices=CHOICES))


def test_what_is_none_in_the_config_may_have_values():
    none, some = make_cells(CONFIG, sweep({"cache": {"num_blocks": (None, 10)}}))
    assert (none.overrides, some.overrides) == ({}, {"cache.num_blocks": 10})


def test_what_the_sweep_varies_cannot_be_set_for_all_cells():
    grid = {"preemption": ("swap",)}
    with pytest.raises(ValueError, match=r"set --config.sweep.grid.preemption, or leave"):
        make_cells(CONFIG, sweep(grid, choices=CHOICES), given=["cache.host_blocks"])
    with pytest.raises(ValueError, match=r"set by sweep.seeds"):
        make_cells(CONFIG, sweep(grid, choices=CHOICES), given=["workload.seed"])
    assert make_cells(CONFIG, sweep(grid, choices=CHOICES), given=["workload.num_requests"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"kind": "compiled"},
            "sweep.kind='compiled' is not offered; use one of simulated",
        ),
        ({"seeds": ()}, "sweep.seeds is empty"),
        ({"seeds": (-1,)}, "sweep.seeds=-1 must be >= 0"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused(changed, message):
    plain = {"kind": "measured", "seeds": (0,), "grid": {}, "choices": {}}
    with pytest.raises(ValueError, match=message):
        SweepConfig(**{**plain, **changed})


def test_trees_and_dotted_keys_are_the_same():
    leaves = flat(CONFIG)
    assert leaves["scheduler.retain"] == ("completed",)
    assert nested(leaves) == CONFIG


def test_overrides_become_flags():
    overrides = {"a.b": 0.5, "c": True, "d": ("x", 2), "e": "text, with spaces"}
    assert flags_of(overrides) == [
        "--config.a.b=0.5",
        "--config.c=True",
        "--config.d=('x', 2)",
        "--config.e=text, with spaces",
    ]
