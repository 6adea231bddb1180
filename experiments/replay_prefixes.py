"""How often does a prefix cache hit, under each eviction policy and at each capacity?

    python -m experiments.replay_prefixes --trace=conversation_trace.jsonl

Replays a trace in Mooncake's format (block hashes of each prompt) through the prefix
cache, without model or clock, and compares each policy with the offline optimum: Belady,
who knows what comes. Exits with 1 if lines of the trace are malformed.

Mooncake's conversation trace (Qin et al., FAST 2025), without limit: 105,710 of 288,500
look-ups hit, 36.6 %.
"""

import functools
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.hit_rates import (
    OPTIMUM,
    capacity_name,
    draw_hit_rates,
    hit_rate_table,
)
from paxkv.policies.eviction import EVICTION_POLICIES, CostAware, EvictionPolicy
from paxkv.policies.naming import policy_named
from paxkv.prefix_replay import Trace, read_trace, replay_optimum, replay_prefixes
from paxkv.results import (
    ResultsNotWritten,
    Row,
    RunInfo,
    prepare_folder,
    run_facts,
    save_rows,
)

TRACE = flags.DEFINE_string("trace", None, "JSONL file in Mooncake's format.")
CAPACITIES = flags.DEFINE_list(
    "capacities", ["1000", "3000", "10000", "30000", "100000", "inf"], "Blocks."
)
POLICIES = flags.DEFINE_list(
    "policies",
    [name for name in EVICTION_POLICIES if name != "priority"],  # a trace has none: lru
    "Names, or import paths package.module:attribute.",
)
TOKENS_PER_HASH = flags.DEFINE_integer(
    "tokens_per_hash", 512, "Tokens of one block of the trace.", lower_bound=1
)
OUT = flags.DEFINE_string("out", None, "A file that rows are added to.")
PLOT = flags.DEFINE_string("plot", None, "A PNG file for hit rate against capacity.")
MALFORMED_SHOWN = 5


def parse_capacities(texts: list[str]) -> list[int | None]:
    """Ascending, no limit last: a capacity too small is refused before any is run."""
    limited = set()
    for text in texts:
        if text == "inf":
            continue
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(
                f"--capacities has {text!r}; give blocks ≥ 1, or inf for no limit."
            )
        limited.add(int(text))
    return [*sorted(limited), *([None] if "inf" in texts else [])]


def make_policies() -> Mapping[str, Callable[[], EvictionPolicy]]:
    """By the names given. To the cache, a block of the trace is one token long."""
    cost_aware = functools.partial(
        CostAware, linear_tokens=CostAware.linear_tokens / TOKENS_PER_HASH.value
    )
    offered = {**EVICTION_POLICIES, "cost_aware": cost_aware}
    return {name: policy_named(name, offered, "eviction policy") for name in POLICIES.value}


def measure(
    trace: Trace,
    num_blocks: int | None,
    policies: Mapping[str, Callable[[], EvictionPolicy]],
    bar: tqdm,
) -> list[Row]:
    """A row for each policy, and one for the optimum."""

    def on_request() -> None:
        bar.update()

    bar.set_postfix_str(f"{capacity_name(num_blocks)} blocks")
    optimum = replay_optimum(trace.requests, num_blocks, on_request)
    counts = {
        name: replay_prefixes(trace.requests, num_blocks, make(), on_request)
        for name, make in policies.items()
    }
    return [
        {
            "num_blocks": num_blocks,
            "policy": name,
            "num_lookups": found.num_lookups,
            "num_hits": found.num_hits,
            "num_evicted": found.num_evicted,
            "hit_rate_percent": 100 * found.hit_rate,
            "regret_points": 100 * (optimum.hit_rate - found.hit_rate),
        }
        for name, found in (counts | {OPTIMUM: optimum}).items()
    ]


def main() -> int:
    logging.set_verbosity(logging.WARNING)

    # --- parse and load: what can be refused is refused before anything runs
    if not TRACE.value:
        raise app.UsageError("--trace is missing; name a JSONL file in Mooncake's format.")
    path = Path(TRACE.value)
    try:
        capacities = parse_capacities(CAPACITIES.value)
        policies = make_policies()
        trace = read_trace(path)
        for written in filter(None, (OUT.value, PLOT.value)):
            prepare_folder(Path(written).parent)
    except (ValueError, OSError) as error:
        raise app.UsageError(str(error)) from error
    if not capacities:
        raise app.UsageError("--capacities is empty; name at least one.")
    num_malformed = len(trace.malformed)
    if num_malformed:
        print(f"{path}: {num_malformed} malformed lines, which are left out:")
        print("".join(f"  {line}\n" for line in trace.malformed[:MALFORMED_SHOWN]), end="")
    if not trace.num_lookups:
        raise app.UsageError(f"{path} has no look-up; name a trace in Mooncake's format.")
    print(
        f"{path.name}: {len(trace.requests):,} requests, {trace.num_lookups:,} look-ups "
        f"of blocks of {TOKENS_PER_HASH.value} tokens, {trace.longest} in the longest; "
        f"{sum(request.input_length for request in trace.requests):,} prompt tokens, "
        f"{sum(request.output_length for request in trace.requests):,} output tokens"
    )

    # --- run
    rows: list[Row] = []
    total = len(trace.requests) * len(capacities) * (len(policies) + 1)
    with tqdm(total=total, desc="replay", unit="request") as bar:
        for num_blocks in capacities:
            try:
                rows.extend(measure(trace, num_blocks, policies, bar))
            except ValueError as error:
                raise app.UsageError(f"--capacities: {error}") from error

    # --- report: the table first, so that a full disk loses nothing
    print(hit_rate_table(rows))
    info = RunInfo(
        experiment="replay_prefixes",
        kind="simulated",
        command=shlex.join(["python", "-m", "experiments.replay_prefixes", *sys.argv[1:]]),
        seed=0,
        device="none",
        implementation="none",
        matmul_precision="none",
        xla_flags="",
    )
    facts = run_facts(info) | {
        "trace": path.name,
        "num_requests": len(trace.requests),
        "num_malformed": num_malformed,
        "tokens_per_hash": TOKENS_PER_HASH.value,
    }
    rows = [{**facts, **row} for row in rows]
    failed = num_malformed > 0
    try:
        if OUT.value:
            save_rows(Path(OUT.value), rows)
            print(f"Rows were added to {OUT.value}.")
        if PLOT.value:
            draw_hit_rates(rows, Path(PLOT.value))
            print(f"The figure is {PLOT.value}.")
    except ResultsNotWritten as error:
        failed = True
        print(f"FAILED: {error}")
    except ImportError as error:
        print(f"No figure: {error}")
    if num_malformed:
        print(f"FAILED: {num_malformed} lines of {path} were left out.")
    return int(failed)


if __name__ == "__main__":
    entry.run(main)
