"""Lines have a point for each setting, in order, with the interval of its seeds."""

import pytest

from paxkv.analysis.reports.lines import has_axis, line_chart, lines_along, lines_between
from paxkv.analysis.reports.settings import RATE, points_of
from tests.report_rows import trial_row

LATENCY = "metrics.normalized_latency_s"


@pytest.fixture
def points():
    found, _ = points_of(
        [
            trial_row(
                name=name,
                seed=seed,
                config={"workload.rate_per_s": rate},
                normalized_latency_s=rate * scale + seed,
                running_mean=10 - rate,
            )
            for name, scale in (("a", 1.0), ("b", 2.0))
            for rate in (4.0, 2.0)
            for seed in (0, 2)
        ]
    )
    return found


def test_lines_along_a_setting(points):
    one, other = lines_along(points, RATE, LATENCY)
    assert (one.label, one.x, one.y) == ("a", (2.0, 4.0), (3.0, 5.0))
    assert (other.label, other.y) == ("b", (5.0, 9.0))
    # two seeds 2 apart: deviation sqrt(2), t(1) = 12.706
    assert one.half_widths == pytest.approx((12.706, 12.706))


def test_lines_between_two_numbers(points):
    one, _ = lines_between(points, RATE, "metrics.running_mean", LATENCY)
    assert (one.x, one.y) == ((6.0, 8.0), (5.0, 3.0))


def test_names_that_repeat_the_setting_make_one_line():
    """As the cells of a sweep are named."""
    found, _ = points_of(
        [
            trial_row(
                name=f"block_size={size}",
                cell={"cache.block_size": size},
                config={"cache.block_size": size},
                normalized_latency_s=1 / size,
            )
            for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        ]
    )
    (one,) = lines_along(found, "cache.block_size", LATENCY)
    assert (one.label, len(one.x), one.y[:2]) == ("", 9, (1.0, 0.5))


def test_what_was_not_measured_is_left_out(points):
    assert lines_along(points, RATE, "metrics.absent") == ()
    assert line_chart((), title="", x_label="", y_label="") is None


def test_an_axis_has_several_numbers(points):
    assert has_axis(points, RATE)
    assert not has_axis(points, "name") and not has_axis(points[:1], RATE)


def test_a_logarithm_needs_positive_values(points):
    series = lines_along(points, RATE, LATENCY)
    chart = line_chart(series, title="t", x_label="x", y_label="y", has_log_y=True)
    assert chart is not None and chart.has_log_y
    zero = lines_along(points, RATE, "metrics.num_preemptions")
    assert line_chart(zero, title="t", x_label="x", y_label="y") is None


def test_too_many_lines_are_not_drawn(points):
    series = lines_along(points, RATE, LATENCY) * 5
    assert line_chart(series, title="t", x_label="x", y_label="y") is None
