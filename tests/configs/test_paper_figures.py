"""What must hold of every file of configs/paper, whatever its runs give."""

import pytest

from experiments.paper import figures
from paxkv.reproduction.figure import SAMPLES
from paxkv.reproduction.jobs import MODES, as_mode, jobs_of
from paxkv.reproduction.runners import load

FIGURES = figures()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_can_run_in_each_mode(name):
    figure = FIGURES[name]
    assert load(figure.runner).kind in ("simulated", "measured", "computed")
    for mode in MODES:
        as_it_is = as_mode(figure, mode)
        jobs = jobs_of(as_it_is)
        assert jobs
        right = {(str(j.labels), j.seed, j.profile): j.key for j in jobs if not j.planted}
        for planted in as_it_is.planted:  # each has cells, and changes something in them
            wrong = [job for job in jobs if job.planted == planted.name]
            changes = [j.key != right[str(j.labels), j.seed, j.profile] for j in wrong]
            assert any(changes), planted.name


@pytest.mark.parametrize("name", FIGURES)
def test_each_band_rejects_something_planted(name):
    figure = FIGURES[name]
    names = [check.name for check in figure.checks]
    assert len(set(names)) == len(names)
    rejecting = {one for planted in figure.planted for one in planted.rejected_by}
    assert rejecting <= set(names)
    for check in figure.checks:
        assert check.sample in SAMPLES
        if check.band is not None:
            low, high = check.band
            assert low is None or high is None or low <= high
            assert check.name in rejecting, check.name
        else:
            assert check.fails_because is None
