import pytest

from paxkv.reproduction.figure import Planted
from paxkv.reproduction.jobs import as_mode, distinct, jobs_of
from tests.paxkv.reproduction.figures import make_figure


def test_each_cell_runs_with_each_seed_and_another_profile_and_plants_once():
    figure = make_figure(profiles=("calibrated", "ideal"))
    told = [(j.labels["size"], j.seed, j.profile, j.planted) for j in jobs_of(figure)]
    right = [(s, seed, "calibrated", None) for s in (1, 2) for seed in (0, 1)]
    right += [(s, 0, "ideal", None) for s in (1, 2)]
    wrong = [(s, 0, "calibrated", "twice") for s in (1, 2)]
    assert sorted(told, key=repr) == sorted(right + wrong, key=repr)


def test_a_planted_policy_has_its_keys_in_its_cells_only():
    planted = Planted(
        name="twice", overrides={"double": 2}, rejected_by=(), where={"size": (2,)}
    )
    jobs = [j for j in jobs_of(make_figure(planted=(planted,))) if j.planted]
    assert [(j.labels["size"], j.config["double"]) for j in jobs] == [(2, 2)]


def test_a_planted_policy_is_for_an_axis_of_the_grid():
    planted = Planted(name="x", overrides={"double": 2}, rejected_by=(), where={"sise": ()})
    with pytest.raises(ValueError, match="for the axis sise"):
        jobs_of(make_figure(planted=(planted,)))


@pytest.mark.parametrize("key", ["dubble", "workload.seed"])
def test_a_planted_policy_sets_keys_that_are_there(key):
    planted = Planted(name="wrong", overrides={key: 2}, rejected_by=())
    with pytest.raises(ValueError, match=f"sets {key}"):
        jobs_of(make_figure(planted=(planted,)))


def test_same_runs_have_the_same_key():
    keys = [job.key for job in jobs_of(make_figure())]
    assert len(set(keys)) == len(keys) == 6
    assert keys == [job.key for job in jobs_of(make_figure(figure="other", title="x"))]
    same = Planted(name="nothing", overrides={"double": 1}, rejected_by=())
    jobs = jobs_of(make_figure(planted=(same,)))
    assert len(jobs) == 6
    assert len(list(distinct(jobs))) == 4


def test_quick_is_one_seed_and_what_the_figure_says():
    figure = make_figure(quick={"grid.size": (2,), "double": 3}, quick_plants=False)
    (job,) = jobs_of(as_mode(figure, "quick"))
    assert (job.labels, job.config["double"], job.seed) == ({"size": 2}, 3, 0)
    assert jobs_of(as_mode(figure, "full")) == jobs_of(figure)


def test_long_keeps_the_seeds():
    figure = as_mode(make_figure(long={"double": 3}), "long")
    assert figure.seeds == (0, 1)
    assert len(jobs_of(figure)) == 6


@pytest.mark.parametrize("key", ["grid.sice", "dubble"])
def test_a_mode_sets_keys_that_are_there(key):
    with pytest.raises(ValueError, match="which it lacks"):
        as_mode(make_figure(quick={key: (1,)}), "quick")
