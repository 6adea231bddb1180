"""What must hold of every file of configs/paper, whatever its runs give."""

import json
import re
from importlib import import_module

import pytest

from experiments.paper import CONFIGS, figures
from paxkv.reproduction.figure import SAMPLES
from paxkv.reproduction.jobs import MODES, as_mode, distinct, jobs_of
from paxkv.reproduction.runners import load
from paxkv.reproduction.runners.trials import trial_of
from paxkv.scheduler_building import build_scheduler
from paxkv.trials.simulated import blocks_per_group

FIGURES = figures()
RECORDS = {  # docstrings, by figure
    module.get_figure().figure: module.__doc__ or ""
    for path in CONFIGS.glob("*.py")
    if hasattr(module := import_module(f"configs.paper.{path.stem}"), "get_figure")
}
OF_TRIALS = ("simulate", "capacity", "serve")  # runners that build the trial's scheduler
RUN = re.compile(r"^Run: python -m experiments\.paper --figure=(\S+)$", re.MULTILINE)
SAID = {  # of a record: what it is about → a word of it
    "the paper's numbers": r"^(Paper|Published|Aim|No published)\b",
    "ours": r"\bOurs\b",
    "what they are": r"\b(simulated|measured|computed)\b",
    "hardware": r"A100|H100|CPU|Hardware: none",
    "time": r"\b(seconds?|minutes?|min|\d+ s)\b",
}


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


@pytest.mark.parametrize("name", [n for n, f in FIGURES.items() if f.runner in OF_TRIALS])
def test_each_trial_is_valid_and_its_scheduler_can_be_built(name):
    """Planted ones, too: a policy that is refused shows nothing."""
    built = set()
    for job in distinct(jobs_of(FIGURES[name])):
        parts = [job.config[p] for p in ("model", "engine", "cache", "scheduler")]
        key = json.dumps(parts, sort_keys=True)
        if key in built:
            continue
        built.add(key)
        trial = trial_of(job.config)
        build_scheduler(
            trial.engine.cache,
            trial.engine.scheduler,
            num_blocks=blocks_per_group(trial),
            max_context=trial.max_context,
            vocab_size=trial.model.vocab_size,
            windows=trial.model.group_windows,
        )


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


@pytest.mark.parametrize("name", FIGURES)
def test_a_record_is_complete_and_its_command_runs_its_figure(name):
    assert RUN.findall(RECORDS[name]) == [name]
    missing = [
        what for what, how in SAID.items() if not re.search(how, RECORDS[name], re.M)
    ]
    assert not missing
