"""The costs of swapping and computing again: what is timed does what serving does."""

import numpy as np
import pytest

from paxkv.config import CacheConfig, EngineConfig
from paxkv.relocation import RelocationBench, fit_line
from tests.fakes import make_scheduler
from tests.tiny_model import tiny_decoder


def make_bench(**settings) -> RelocationBench:
    sizes = {"block_counts": (1, 3), "token_counts": (9, 33)} | settings
    config = EngineConfig(
        model="tiny", implementation="xla", cache=CacheConfig(block_size=4)
    )
    return RelocationBench(config, tiny_decoder(), **sizes)


def test_a_line_through_points_on_a_line():
    line = fit_line({2: 5.0, 4: 9.0, 10: 21.0})
    assert line.slope_s == pytest.approx(2.0)
    assert line.start_s == pytest.approx(1.0)
    assert line.largest_residual == pytest.approx(0.0, abs=1e-12)
    assert line.sizes == (2, 4, 10) and line.median_s == (5.0, 9.0, 21.0)


def test_residuals_are_shares_of_the_largest_time():
    line = fit_line({0: 0.0, 1: 2.0, 2: 2.0})  # the line is 1/3 + x
    assert line.largest_residual == pytest.approx((2 / 3) / 2)


def test_times_that_do_not_grow_are_refused():
    with pytest.raises(ArithmeticError, match="noise is larger; take larger sizes"):
        fit_line({1: 0.5, 2: 0.5, 3: 0.4})


def test_a_swap_moves_blocks_out_and_in_and_changes_none():
    bench = make_bench()
    bench.recompute(33)
    before = [np.array(pool.kv) for pool in bench.executor.cache]
    bench.swap(3)
    counts = bench.executor.transfers.counts
    assert counts.swapped_out_blocks == counts.swapped_in_blocks == 3 * bench.num_groups
    assert counts.swapped_out_bytes == 3 * bench.executor.cache_plan.bytes_per_block
    for pool, kv in zip(bench.executor.cache, before, strict=True):
        np.testing.assert_array_equal(pool.kv, kv)
        assert (kv[:, 1:10] != 0).any(axis=(0, 2, 3, 4)).all()  # nine blocks were computed


def test_each_size_is_a_shape_without_padding():
    bench = make_bench()
    for num_tokens in bench.token_counts:
        bench.recompute(num_tokens)
    shapes = {shape.num_tokens for shape, *_ in bench.executor.programs}
    assert shapes == {9, 33}


def test_what_is_measured_is_complete(monkeypatch):
    bench = make_bench()

    def in_turns(runs, rounds, before):
        """Calls each once; the times are those of a clock that counts sizes."""
        for run in runs.values():
            before()
            run()
        unit_s = {"swap": 0.5, "compute": 0.25}
        times = {name: unit_s[name.split()[0]] * int(name.split()[1]) for name in runs}
        return {name: [seconds] * rounds for name, seconds in times.items()}

    monkeypatch.setattr("paxkv.relocation.interleaved", in_turns)
    calls = []
    found = bench.measure(2, lambda: calls.append(1))
    assert len(calls) == bench.num_runs == 4
    assert found.swap_s_per_block == pytest.approx(0.5 / bench.num_groups)
    assert found.recompute_s_per_token == pytest.approx(0.25)
    assert found.crossover_tokens_per_block == pytest.approx(2.0 / bench.num_groups)
    assert found.bytes_per_block * bench.num_groups == (
        bench.executor.cache_plan.bytes_per_block
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"block_counts": (4, 4)}, r"block_counts=\[4, 4\] must be two or more different"),
        ({"block_counts": ()}, r"block_counts=\[\] must be two or more"),
        ({"block_counts": (0, 4)}, r"in \[1, "),
        ({"token_counts": (8, 16)}, r"token_counts=\[8, 16\] .* in \[9, "),
        ({"token_counts": (16, 10**6)}, "1000000.* different sizes"),
    ],
)
def test_sizes_out_of_range_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        make_bench(**settings)


def test_to_compare_without_costs_is_refused():
    settings = {"pressure": "swap_or_recompute", "host_blocks": 16}
    with pytest.raises(ValueError, match="python -m experiments.measure_relocation"):
        make_scheduler(**settings)
    make_scheduler(**settings, swap_s_per_block=1e-4)
    make_scheduler(**settings | {"pressure": "preempt_swap"})
