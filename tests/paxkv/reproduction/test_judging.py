import math

import pytest

from paxkv.reproduction.figure import Check, Planted
from paxkv.reproduction.jobs import as_mode, jobs_of
from paxkv.reproduction.judging import Verdict, judge
from tests.paxkv.reproduction.figures import make_figure, rows_of

PLANTED = make_figure().planted


def judged(figure, rows=None, mode="full"):
    rows = rows_of(figure) if rows is None else rows
    figure = as_mode(figure, mode)
    return judge(figure, jobs_of(figure), rows, mode)


def check(**changes) -> Check:
    given = {"name": "large", "ours": lambda found: found("value", size=2)}
    return Check(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"band": (2.5, 2.5)}, Verdict.PASS),  # the mean of 2 and 3, over seeds
        ({"band": (None, 2.5)}, Verdict.PASS),
        ({"band": (2.51, None)}, Verdict.FAIL),
        ({"band": (3, 4), "fails_because": "it is small"}, Verdict.EXPECTED_FAIL),
        ({"band": (2, 3), "fails_because": "it is small"}, Verdict.UNEXPECTED_PASS),
        ({"band": (2, 3), "no_verdict_because": "made up"}, Verdict.NO_VERDICT),
        ({}, Verdict.NO_BAND),
        ({"band": (1, 2), "ours": lambda found: math.nan}, Verdict.FAIL),
        ({"band": (1, 2), "ours": lambda found: 1 / 0}, Verdict.ERROR),
        ({"ours": lambda found: found("nothing", size=2)}, Verdict.ERROR),
        ({"ours": lambda found: found("value", size=3)}, Verdict.ERROR),
    ],
)
def test_verdicts(changes, verdict):
    (one,) = judged(make_figure(checks=(check(**changes),), planted=()))
    assert one.verdict is verdict
    fails = verdict in (Verdict.FAIL, Verdict.UNEXPECTED_PASS, Verdict.ERROR)
    assert one.is_unexpected == fails


@pytest.mark.parametrize("mode", ["quick", "long"])
def test_only_the_full_runs_are_expected_to_fail(mode):
    one = check(band=(2, 3), fails_because="traces are short")
    figure = make_figure(checks=(one,), planted=())
    (found,) = judged(figure, mode=mode)
    assert found.verdict is Verdict.PASS


def test_a_band_must_reject_what_is_planted():
    (one,) = judged(make_figure())
    (rejection,) = one.rejections
    assert (rejection.planted, rejection.value, rejection.is_rejected) == ("twice", 4, True)
    assert (one.mean, one.values, one.is_unexpected) == (2.5, (2, 3), False)
    (one,) = judged(make_figure(checks=(check(band=(2, 4)),)))
    assert one.verdict is Verdict.PASS
    assert one.is_unexpected


def test_a_rejection_shows_something_only_if_the_right_policy_is_in_the_band():
    (one,) = judged(make_figure())
    assert one.rejections[0].is_telling
    (one,) = judged(make_figure(checks=(check(band=(2.4, 2.6)),)))  # the first seed has 2
    assert one.verdict is Verdict.PASS
    assert one.rejections[0].is_rejected
    assert not one.rejections[0].is_telling


def test_no_number_is_no_rejection():
    def ours(found):
        value = found("value", size=2)
        return math.nan if value == 4 else value

    (one,) = judged(make_figure(checks=(check(band=(2, 2.5), ours=ours),)))
    assert not one.rejections[0].is_rejected
    assert one.is_unexpected


def test_cells_without_the_planted_policy_stay():
    planted = Planted(
        name="twice",
        overrides={"double": 2},
        rejected_by=("ratio",),
        where={"size": (2,)},
    )
    ratio = check(
        name="ratio",
        ours=lambda found: found("value", size=2) / found("value", size=1),
        band=(1, 3),
    )
    (one,) = judged(make_figure(checks=(ratio,), planted=(planted,)))
    assert [r.value for r in one.rejections] == [4.0]


def test_quick_leaves_out_and_full_must_not():
    figure = make_figure(quick={"grid.size": (1,)})
    (one,) = judged(figure, mode="quick")
    assert one.verdict is Verdict.NOT_RUN
    assert not one.is_unexpected
    (one,) = judged(make_figure(checks=(check(full_only=True),)), mode="quick")
    assert one.verdict is Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("field", "verdict"),
    [("error", Verdict.ERROR), ("unavailable", Verdict.UNAVAILABLE)],
)
def test_a_run_without_metrics_says_why(field, verdict):
    figure = make_figure(planted=())
    rows = {
        key: row | {"metrics": None, field: "no trace"}
        for key, row in rows_of(figure).items()
    }
    (one,) = judged(figure, rows)
    assert (one.verdict, one.why) == (verdict, "no trace")


def test_other_profiles_are_shown():
    (one,) = judged(make_figure(profiles=("calibrated", "ideal")))
    assert one.other_profiles == {"ideal": 2}
