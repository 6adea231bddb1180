"""Simulates the planted bottlenecks and turns all their knobs, and prints what was found.

    python -m tests.paxkv.analysis.diagnosis.planted

A process of its own: the checks of types that tests run with make simulations ten times
slower.
"""

import importlib
import json

from paxkv.analysis.diagnosis.advice import advise
from paxkv.analysis.diagnosis.causes import diagnose
from paxkv.analysis.diagnosis.knobs import KNOBS, SETTING, with_changes
from paxkv.analysis.diagnosis.runs import Run, floor_of, simulator
from paxkv.analysis.diagnosis.verify import turn_all
from paxkv.results import SCHEMA_VERSION
from paxkv.trials.simulated import simulate
from paxkv.trials.trial_config import trial_config

# config: metric, its cause and its knob
PLANTED = {
    "queueing": ("ttft", "queueing", "more_rows"),
    "full_pool": ("ttft", "queueing", "more_blocks"),
    "prefill_interference": ("tpot", "prefill_interference", "smaller_budget"),
    "decode": ("tpot", "decode", "fewer_rows"),
    "recompute": ("tpot", "recompute", "reserve"),
    "swap": ("tpot", "swap", "no_host_tier"),
    "host": ("tpot", "host", "fewer_rows"),
    "communication": ("tpot", "communication", "fewer_chips"),
}


def planted(name, **changes):
    tree = importlib.import_module(f"configs.planted.{name}").get_config().to_dict()
    return with_changes(tree, {key.replace("__", "."): v for key, v in changes.items()})


def run_of(tree):
    """A simulated run, as its row and its requests."""
    records = []
    trial = trial_config(tree)
    outcome = simulate(trial, "calibrated", on_record=records.append)
    row = {
        "schema": SCHEMA_VERSION,
        "experiment": "simulate_trace",
        "kind": "simulated",
        "name": trial.name,
        "profile": "calibrated",
        "config": tree,
        "metrics": outcome.metrics,
    }
    return Run(row=row, records=tuple(records))


def p95(run, metric):
    findings = diagnose(run.records, floor_of(run), (95,))
    return next(finding for finding in findings if finding.metric == metric)


def found(name):
    """What a diagnosis says of one, and what its knobs do."""
    metric, _, knob = PLANTED[name]
    run = run_of(planted(name))
    finding = p95(run, metric)
    verified = turn_all(run.config, simulator("calibrated"), (95,))
    before_s = verified.before_s[metric, 95]
    return {
        "cause": finding.cause,
        "knob": advise(finding, run.evidence).name,
        "is_same_run": before_s == finding.value_s,
        "is_confirmed": verified.confirms(knob, metric, 95),
        "settings_that_help": [
            one.name
            for one in verified.turned
            if KNOBS[one.name].price == SETTING and one.after_s[metric, 95] < 0.9 * before_s
        ],
    }


if __name__ == "__main__":
    print(json.dumps({name: found(name) for name in PLANTED}))
