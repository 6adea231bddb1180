"""All that a trial is, checked: what is served, by what, and what is promised."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paxkv.analysis.slo import SLO
from paxkv.checks import Check, integer_in, named, number_where, one_of, optional
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.simulation.hardware import HardwareConfig
from paxkv.simulation.model_shape import ModelShape
from paxkv.simulation.profiles import PROFILES
from paxkv.simulation.router import ROUTING_POLICIES
from paxkv.workloads.workload_config import WorkloadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Replicas of the engine, and which of them gets a request."""

    policy: str = "round_robin"
    num_replicas: int = 1

    def __post_init__(self):
        named("router.policy", self.policy, one_of(tuple(ROUTING_POLICIES)))
        named("router.num_replicas", self.num_replicas, integer_in(1, 2**16, "use ≥ 1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """What of a run counts: steps, and requests that arrive, between two times."""

    from_s: float | int = 0.0
    until_s: float | int | None = None  # None: to the end

    def __post_init__(self):
        for name, check in _MEASURE_CHECKS.items():
            named(f"measure.{name}", getattr(self, name), check)
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(
                f"measure.until_s={self.until_s} is not after measure.from_s="
                f"{self.from_s}; nothing would be measured."
            )


_TIME = number_where(lambda x: x >= 0, "≥ 0", "it is a time in seconds")
_MEASURE_CHECKS: Mapping[str, Check] = {"from_s": _TIME, "until_s": optional(_TIME)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """One trial. The engine's config holds those of cache and scheduler."""

    name: str
    profiles: tuple[str, ...]  # of costs, each a simulation of its own
    model: ModelShape
    hardware: HardwareConfig
    engine: EngineConfig
    weights_dtype: str  # of real runs
    workload: WorkloadConfig
    router: RouterConfig = field(default_factory=RouterConfig)
    slo: SLO = field(default_factory=SLO)
    measure: MeasureConfig = field(default_factory=MeasureConfig)

    @property
    def max_context(self) -> int:
        """Of a simulation: the shape's, unless the engine has less."""
        return min(
            self.engine.max_context or self.model.max_context, self.model.max_context
        )


def trial_config(tree: Mapping[str, Any]) -> TrialConfig:
    """Of the subtrees of configs/trial.py, whose keys are the fields' names.

    Raises:
      ValueError, TypeError: a setting is out of range or of the wrong type.
    """
    profiles = tuple(tree["profiles"])
    for name in profiles:
        named("profiles", name, one_of(PROFILES))
    if not profiles:
        raise ValueError(f"profiles is empty; name some of {', '.join(PROFILES)}.")
    if len(set(profiles)) < len(profiles):
        raise ValueError(f"profiles={profiles} names one twice; name each once.")
    engine = dict(tree["engine"])
    weights_dtype = engine.pop("weights_dtype")
    return TrialConfig(
        name=tree["name"],
        profiles=profiles,
        model=ModelShape(**tree["model"]),
        hardware=HardwareConfig(**tree["hardware"]),
        engine=EngineConfig(
            **engine,
            cache=CacheConfig(**tree["cache"]),
            scheduler=SchedulerConfig(**tree["scheduler"]),
        ),
        weights_dtype=weights_dtype,
        workload=WorkloadConfig(**tree["workload"]),
        router=RouterConfig(**tree["router"]),
        slo=SLO(**tree["slo"]),
        measure=MeasureConfig(**tree["measure"]),
    )
