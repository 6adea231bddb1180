"""The page of what came after 2023: its configs, and the experiment as users run it."""

import importlib
from dataclasses import replace

import pytest

from configs.since_2023 import chips, ideas, setup, systems, traces
from paxkv.reproduction.jobs import as_mode, jobs_of
from paxkv.simulation.chips import CHIPS
from paxkv.simulation.hardware import HardwareConfig, memory_for_kv
from paxkv.simulation.model_shape import ModelShape
from paxkv.sweeps.grid import complete
from paxkv.trials.trial_config import trial_config
from tests.experiments.running import run_experiment

MODULES = (ideas, systems, chips, traces)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_runs_are_trials_and_findings_have_their_numbers(module):
    for section in module.get_sections():
        for job in jobs_of(replace(section.figure, seeds=(0,))):
            trial_config(job.config)
        as_mode(section.figure, "quick")
        section.finding.format(**dict.fromkeys(section.numbers, 1.0))


def test_an_idea_changes_what_it_names_and_nothing_else():
    base = setup.setting("Mooncake")
    filled = complete(setup.IDEAS, base)
    allowed = {
        "2023": set(),
        "chunked prefill": {"chunked_prefill", "max_num_batched_tokens"},
        "no-evict": {"admission"},
        "prefix cache": {"prefix_caching"},
        "prefix cache by token": {"prefix_caching", "granularity"},
        "prefix cache and host": {"prefix_caching", "host_blocks"},
    }
    for idea, tree in filled.items():
        changed = {
            key
            for part, values in tree.items()
            for key, value in values.items()
            if value != base[part][key]
        }
        assert changed == allowed[idea], idea


@pytest.mark.parametrize("place", (0, 1), ids=("8b", "70b"))
def test_chips_are_the_fewest_that_leave_a_fifth_for_the_cache(place):
    name = ("llama3_8b", "llama3_70b")[place]
    shape = importlib.import_module(f"configs.models.{name}").get_config()
    model = ModelShape(**shape.to_dict())

    def share(chip: str, num_chips: int) -> float:
        hardware = HardwareConfig(chip=chip, num_chips=num_chips)
        try:
            return memory_for_kv(hardware, model, 2_048) / CHIPS[chip].memory_bytes
        except ValueError:  # the weights do not fit
            return 0.0

    for chip, *numbers in chips.CHIPS.values():
        assert share(chip, numbers[place]) >= 0.2
        assert numbers[place] == 1 or share(chip, numbers[place] // 2) < 0.2


def test_without_traces_their_section_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PAXKV_TRACES", str(tmp_path))  # has none
    done = run_experiment("since_2023", "--quick", "--sections=traces", f"--out={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "since_2023.md").read_text("utf-8")
    assert page.count("Not all ran: PAXKV_TRACES=") == 3
    assert "All numbers are simulated" in page
