"""Small trials for tests: the config of configs/trial.py with a few keys replaced."""

from typing import Any

from configs.trial import get_config
from paxkv.analysis.request_records import RequestRecord
from paxkv.events import Event
from paxkv.trials.outcome import TrialOutcome
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import TrialConfig, trial_config


def make_trial(parts: str = "", **overrides: Any) -> TrialConfig:
    """`overrides` are dotted keys with `__` for the dot: cache__block_size=8."""
    config = get_config(parts)
    with config.unlocked():
        for key, value in overrides.items():
            tree, _, name = key.partition("__")
            if name:
                config[tree][name] = value
            else:
                config[tree] = value
    return trial_config(config.to_dict())


def run_trial(
    trial: TrialConfig, profile: str = "calibrated", **settings: Any
) -> tuple[TrialOutcome, list[RequestRecord], list[Event]]:
    """The outcome, all records, and all events."""
    records: list[RequestRecord] = []
    events: list[Event] = []
    outcome = simulate(
        trial, profile, listener=events.append, on_record=records.append, **settings
    )
    return outcome, records, events
