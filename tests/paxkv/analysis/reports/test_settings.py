"""What varies is found; what only repeats is not."""

from paxkv.analysis.reports.settings import BLOCK_SIZE, NAME, RATE, points_of, varying_keys
from tests.report_rows import trial_row


def test_the_config_tells_what_varies():
    rows = [
        trial_row(
            name=f"bs {size}",
            seed=seed,
            config={"cache.block_size": size, "workload.rate_per_s": rate},
        )
        for rate in (4.0, 1.0)
        for size in (16, 8)
        for seed in (0, 1)
    ]
    assert varying_keys(rows) == [RATE, BLOCK_SIZE]
    points, replaced = points_of(rows)
    assert replaced == 0
    assert [tuple(point.settings.values()) for point in points] == [
        (1.0, 8),
        (1.0, 16),
        (4.0, 8),
        (4.0, 16),
    ]
    assert [len(point.rows) for point in points] == [2] * 4
    assert points[0].label() == "rate per s 1, block size 8"
    assert points[0].label(without=[RATE]) == "block size 8"
    assert points[0].label(without=[RATE, BLOCK_SIZE]) == ""


def test_a_pool_that_follows_from_the_model_is_no_axis():
    rows = [
        trial_row(
            name=name,
            config={
                "cache.num_blocks": blocks,
                "model.num_layers": layers,
                "workload.rate_per_s": rate,
            },
        )
        for name, blocks, layers in (("opt", 100, 40), ("llama", 900, 32))
        for rate in (1.0, 2.0)
    ]
    assert varying_keys(rows) == [RATE, NAME]


def test_a_cell_decides():
    """Whatever else differs, as keys that a choice sets."""
    rows = [
        trial_row(
            name=f"ideas={ideas}",
            cell={"ideas": ideas},
            config={"cache.dtype": dtype, "model.num_kv_heads": heads},
        )
        for ideas, dtype, heads in (("none", "bfloat16", 40), ("both", "int8", 8))
    ]
    points, _ = points_of(rows)
    assert [point.settings for point in points] == [{"ideas": "none"}, {"ideas": "both"}]
    assert points[1].label() == "both"


def test_what_a_sweep_varies_is_a_setting_even_if_it_usually_is_none():
    key = "cache.memory_fraction"
    rows = [trial_row(cell={key: share}, config={key: share}) for share in (0.5, 0.9)]
    points, replaced = points_of(rows)
    assert replaced == 0
    assert [point.settings for point in points] == [{key: 0.5}, {key: 0.9}]


def test_the_last_of_a_setting_and_seed_counts():
    rows = [trial_row(running_mean=mean) for mean in (1.0, 2.0)]
    points, replaced = points_of(rows)
    assert replaced == 1
    assert points[0].estimate("metrics.running_mean").mean == 2.0


def test_rows_of_a_point_ascend_by_seed():
    """Cells end in any order; a figure of one seed shows the same one of each setting."""
    points, _ = points_of([trial_row(seed=seed) for seed in (2, 0, 1)])
    assert [row["seed"] for row in points[0].rows] == [0, 1, 2]
    rows = [{**trial_row(), "seed": seed} for seed in (3, None)]
    assert [row["seed"] for row in points_of(rows)[0][0].rows] == [None, 3]


def test_one_setting_is_a_point_with_the_rows_name():
    points, _ = points_of([trial_row(name="vllm_v1", seed=seed) for seed in range(3)])
    assert len(points) == 1 and points[0].settings == {}
    assert points[0].label() == "vllm v1" and len(points[0].rows) == 3
