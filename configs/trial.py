"""One trial: a model's shape on chips, under a system's policies, serving a workload.

    python -m experiments.simulate_trace --config=configs/trial.py:opt_13b,a100_40,vllm_2023

joins parts by name, in any order: a model of configs/models, a chip of configs/chips,
a system of configs/systems, a workload of configs/workloads. What is not named is that of
`DEFAULT`. Every field of the dataclasses behind the subtrees is a key.
"""

import difflib
import importlib
import types
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from paxkv.analysis.slo import SLO
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.simulation.hardware import HardwareConfig
from paxkv.simulation.model_shape import ModelShape
from paxkv.trials.trial_config import MeasureConfig, RouterConfig
from paxkv.workloads.workload_config import WorkloadConfig

DEFAULT = "opt_13b,a100_40,vllm_v1,sharegpt"
FOLDERS = ("models", "chips", "systems", "workloads")


def get_config(parts: str = "", default: str = DEFAULT) -> config_dict.ConfigDict:
    """Joins the named parts over the default ones.

    Args:
      default: names of all kinds that are replaced by those of `parts`; what it lacks is
        that of `DEFAULT`.

    Raises:
      ValueError: a name is unknown, or two are of the same kind.
    """
    chosen = _chosen(DEFAULT) | _chosen(default) | _chosen(parts)
    config = config_dict.ConfigDict()
    config.name = ",".join(chosen.values())
    config.profiles = ("ideal", "calibrated")  # of costs, simulated side by side
    config.output_folder = "results/trial"
    config.record_requests = True  # a line for each, for experiments.diagnose
    config.record_steps = False  # of real runs, for experiments.calibrate
    config.model = _tree(ModelShape)
    config.hardware = _tree(HardwareConfig)
    # of real runs: a checkpoint; in simulation its K/V are those of `model`
    config.engine = _tree(EngineConfig, model="paxkv/assets/recall", max_context=None)
    config.engine.weights_dtype = "float32"
    config.cache = _tree(CacheConfig, dtype="bfloat16")
    config.scheduler = _tree(SchedulerConfig, max_num_seqs=256, max_num_batched_tokens=2560)
    config.workload = _tree(WorkloadConfig, num_requests=200)
    config.router = _tree(RouterConfig)
    config.slo = _tree(SLO)
    config.measure = _tree(MeasureConfig)
    system = _part("systems", chosen["systems"])
    for tree, part in (
        (config.model, _part("models", chosen["models"])),
        (config.hardware, _part("chips", chosen["chips"])),
        (config.cache, system["cache"]),
        (config.scheduler, system["scheduler"]),
        (config.workload, _part("workloads", chosen["workloads"])),
    ):
        tree.update(part)
    return config


def _chosen(parts: str) -> dict[str, str]:
    """By folder, the names in a list of them."""
    offered = {
        path.stem: folder
        for folder in FOLDERS
        for path in sorted((Path(__file__).parent / folder).glob("*.py"))
    }
    chosen: dict[str, str] = {}
    for name in filter(None, parts.split(",")):
        if name not in offered:
            near = difflib.get_close_matches(name, offered, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"{name!r} is no part of a trial; nearest: {near}. There are "
                f"{', '.join(offered)}."
            )
        folder = offered[name]
        if folder in chosen:
            raise ValueError(
                f"{chosen[folder]!r} and {name!r} are both of configs/{folder}; name one."
            )
        chosen[folder] = name
    return chosen


def _part(folder: str, name: str) -> dict[str, Any]:
    """Its values, without those that are left open."""
    config = importlib.import_module(f"configs.{folder}.{name}").get_config().to_dict()
    return {key: value for key, value in config.items() if value is not None}


def _tree(cls: type, **values: Any) -> config_dict.ConfigDict:
    """A subtree with a key for each field that has a plain value."""
    hints = typing.get_type_hints(cls)
    tree = config_dict.ConfigDict()
    for one in fields(cls):
        kind = _plain_type(hints[one.name])
        if kind is None:
            continue
        value = values.get(one.name, None if one.default is MISSING else one.default)
        tree[one.name] = config_dict.placeholder(kind) if value is None else value
    return tree


def _plain_type(hint: Any) -> type | None:
    """What a value of a field is when it is not None; None: another dataclass."""
    if isinstance(hint, types.UnionType):
        among = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        hint = float if float in among else among[0]
    kind = typing.get_origin(hint) or hint
    return kind if kind in (int, float, str, bool, tuple) else None
