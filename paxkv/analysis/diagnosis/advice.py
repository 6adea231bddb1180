"""The knob that addresses a cause. Several things make a queue, and each has its own: the
counters of the row tell them apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paxkv.analysis.diagnosis.causes import CLOSE, Finding
from paxkv.analysis.diagnosis.knobs import KNOBS, Config, Knob, value_at

ROWS_FULL = 0.9  # of the rows ran, on average, while requests waited
TAIL_PERCENT = 15.0  # of the pool in the rest of last blocks: here their size matters
REGION_PERCENT = 15.0  # of the pool held and never written: here regions matter
SPARE_PERCENT = 5.0  # of the pool: what is free below it admits nobody
_PARTS_OF_STEPS = ("prefill", "decode", "swap", "communication", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One knob, and why that one."""

    why: str
    name: str | None  # in KNOBS; None: no setting addresses it

    @property
    def knob(self) -> Knob | None:
        return None if self.name is None else KNOBS[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the row says beside its requests."""

    config: Config
    metrics: Mapping[str, Any]

    def number(self, key: str) -> float:
        """Of the metrics; nan if it is null there."""
        value = self.metrics[key]
        return math.nan if value is None else float(value)

    def pool_percent(self, *classes: str) -> float:
        """Of the positions, while requests waited; nan if none ever did."""
        shares = [self.metrics["partition_percent"][name] for name in classes]
        return math.nan if None in shares else math.fsum(shares)


def advise(finding: Finding, evidence: Evidence) -> Advice:
    """For the dominating cause; without one, for the work itself."""
    rule = _at_the_floor if finding.cause is None else _RULES[finding.cause]
    why, *candidates = rule(finding, evidence)
    turns = (n for n in candidates if KNOBS[n].change(evidence.config) is not None)
    return Advice(why=why, name=next(turns, None))


# A rule gives the reason, and names of knobs, of which the first that turns is taken.
_Named = tuple[str, ...]


def _queueing(finding: Finding, evidence: Evidence) -> _Named:
    budget = value_at(evidence.config, "scheduler.max_num_batched_tokens")
    if finding.metric == "tpot":
        return (
            f"running requests got no token in steps whose {budget} tokens went to others",
            "larger_budget",
            "more_replicas",
        )
    if _pool_is_full(finding, evidence):
        return _full_pool(evidence)
    rows = value_at(evidence.config, "scheduler.max_num_seqs")
    if evidence.number("capacity") >= ROWS_FULL * rows:
        free = evidence.pool_percent("free", "cached")
        return (
            f"{evidence.number('capacity'):.0f} of {rows} rows ran while requests waited, "
            f"and {free:.0f} % of the pool was free",
            "more_rows",
            "more_replicas",
        )
    return _saturated(finding, evidence)


def _saturated(finding: Finding, evidence: Evidence) -> _Named:
    """A queue before slow steps has the cause that the steps have."""
    parts = {name: evidence.metrics.get(f"{name}_s", 0.0) for name in _PARTS_OF_STEPS}
    parts["swap"] += evidence.metrics.get("copy_s", 0.0)  # as in the causes
    largest = max(parts, key=lambda name: parts[name])
    if largest in ("communication", "swap") and parts[largest] > 0:
        return _RULES[largest](finding, evidence)
    return (
        "neither the pool nor the rows were full while requests waited: the steps are "
        "saturated, and more arrives than they compute",
        "more_replicas",
    )


def _pool_is_full(finding: Finding, evidence: Evidence) -> bool:
    """No prompt like those of the band found room, on average, while requests waited."""
    positions = evidence.number("num_positions")
    free = evidence.pool_percent("free", "cached")
    unusable = evidence.number("unusable_free_percent")
    prompts = [record.num_prompt_tokens for record in finding.band]
    prompt_percent = 100 * sum(prompts) / len(prompts) / positions if positions else 0.0
    reserved = 100 * value_at(evidence.config, "scheduler.watermark")
    return free - unusable <= SPARE_PERCENT + prompt_percent + reserved  # not of nan


def _full_pool(evidence: Evidence) -> _Named:
    regions = evidence.pool_percent("reserved", "internal", "rounding")
    regions += evidence.number("unusable_free_percent")
    tail = evidence.pool_percent("tail")
    if regions > REGION_PERCENT and value_at(evidence.config, "cache.allocator") != "paged":
        why = f"the pool is full, and regions keep {regions:.0f} % of it unwritten"
        return why, "paged", "more_blocks", "more_chips"
    if tail > TAIL_PERCENT:
        why = f"the pool is full, and {tail:.0f} % of it is the rest of last blocks"
        return why, "smaller_blocks", "more_blocks", "more_chips"
    states = evidence.pool_percent("token_states")
    return (
        f"the pool is full of tokens ({states:.0f} %; {tail:.0f} % is lost in last "
        "blocks): it takes more memory, or smaller numbers in it (cache.dtype=int8)",
        "more_blocks",
        "more_chips",
    )


def _several_steps(finding: Finding, evidence: Evidence) -> bool:
    """Whether prompts of the band are longer than a step."""
    budget = value_at(evidence.config, "scheduler.max_num_batched_tokens")
    new = [r.num_prompt_tokens - r.num_cached_tokens for r in finding.band]
    return sum(new) / len(new) > budget


def _preemption_is_close(finding: Finding) -> bool:
    """Then whole outputs are better reserved: fewer run at once, and none gives way."""
    excess = finding.excess_s
    first = excess[finding.ranked[0]]
    return finding.metric == "tpot" and excess["recompute"] >= CLOSE * first


def _interference(finding: Finding, evidence: Evidence) -> _Named:
    budget = value_at(evidence.config, "scheduler.max_num_batched_tokens")
    if finding.metric == "ttft":
        return "prompts share their steps with prompts of others", "more_replicas"
    why = f"steps have up to {budget} tokens of others' prompts, which every decode awaits"
    return why, "smaller_budget", "more_replicas"


def _decode(finding: Finding, evidence: Evidence) -> _Named:
    if finding.metric == "ttft" and _several_steps(finding, evidence):
        why = "prompts take several steps, and each decodes the whole batch"
        return why, "larger_budget", "fewer_rows"
    running = evidence.number("running_mean")
    why = f"the device reads or computes for {running:.0f} requests a step"
    if _preemption_is_close(finding):
        return f"{why}, and preemptions cost nearly as much", "reserve", "fewer_rows"
    return why, "fewer_rows", "more_chips"


def _recompute(finding: Finding, evidence: Evidence) -> _Named:
    num_victims = evidence.number("num_preemptions")
    again = evidence.number("num_recomputed_tokens")
    why = (
        f"the pool was too small for what was admitted: {num_victims:.0f} preemptions, "
        f"{again:.0f} tokens computed again"
    )
    if finding.metric == "ttft":
        return why, "more_blocks", "more_chips"
    return why, "reserve", "more_blocks", "more_chips"


def _swap(finding: Finding, evidence: Evidence) -> _Named:
    moved = evidence.number("num_swapped_out_blocks")
    moved += evidence.number("num_swapped_in_blocks")
    copied = evidence.number("num_copied_blocks")
    why = f"{moved:.0f} blocks went to or from the host, and {copied:.0f} were copied"
    return why, "recompute", "no_host_tier", "larger_blocks"


def _communication(finding: Finding, evidence: Evidence) -> _Named:
    chips = value_at(evidence.config, "hardware.num_chips")
    why = f"every layer of every step waits twice for the sums of {chips} chips"
    return why, "fewer_chips", "route_by_prefix"


def _host(finding: Finding, evidence: Evidence) -> _Named:
    if finding.metric == "ttft" and _several_steps(finding, evidence):
        why = "prompts take several steps, and the host prepares each"
        return why, "larger_budget"
    why = (
        "the host takes longer to prepare a step than the device to compute it, and part "
        "of that grows with the requests of a step"
    )
    if _preemption_is_close(finding):
        return f"{why}; preemptions cost nearly as much", "reserve", "fewer_rows"
    return why, "fewer_rows"


def _at_the_floor(finding: Finding, evidence: Evidence) -> _Named:
    """Its own prompt is part of what a request needs, and so never an excess."""
    if finding.metric == "ttft" and any(record.turn for record in finding.band):
        why = "prompts repeat what was said in earlier turns, and compute it again"
        return why, "prefix_caching", "more_chips"
    why = "the work itself takes the time: only less of it or a faster chip helps"
    return why, "more_chips"


_RULES = {
    "queueing": _queueing,
    "own_prefill": _at_the_floor,
    "prefill_interference": _interference,
    "decode": _decode,
    "recompute": _recompute,
    "swap": _swap,
    "communication": _communication,
    "host": _host,
}
