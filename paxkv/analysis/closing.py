"""The words under a comparison: memory saved, what paging keeps, what it was worth.

Everything said is computed from the rows and holds whoever wins.
"""

import math
import textwrap
from collections.abc import Sequence

from paxkv.results import Row
from paxkv.systems import PAGED

LINE_WIDTH = 80
FEW_QUEUE_STEPS_PERCENT = 20
SAME = 0.02  # ratios this close to 1 are called equal: repeated runs differ by as much


def _name(row: Row) -> str:
    return row["system"].replace("_", "-")


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _saving(mine: float, theirs: float) -> str:
    change_percent = 100 * (mine / theirs - 1)
    if abs(change_percent) <= 100 * SAME:
        return "paging saved nothing, the two are within 2 %"
    if change_percent > 0:
        return f"paging saved nothing, it held {change_percent:.0f} % more"
    return f"paging saved {-change_percent:.0f} %"


def _times(value: float, base: float) -> str:
    if abs(value / base - 1) <= SAME:
        return "the same within 2 %"
    return f"{value / base:.2f} times"


def memory_saved(paged: Row, others: Sequence[Row]) -> str:
    """How many positions a running request held, against each other system."""
    mine = paged["metrics"]
    if not _known(mine["held_per_request"]):
        return (
            "Memory saved: under paged no request ever waited, so nothing was held back "
            "from one. Lower pool_positions or raise the load to see a difference."
        )
    kib = paged["pool"]["bytes_per_token"] / 1024
    text = (
        f"Memory saved: with a queue, a running request held "
        f"{mine['held_per_request']:.0f} positions "
        f"({mine['held_per_request'] * kib:.0f} KiB) under paged, and "
        f"{mine['partition_percent']['token_states']:.1f} % of the pool held token states."
    )
    for row in others:
        theirs = row["metrics"]
        if not _known(theirs["held_per_request"]):
            text += f"\n- Under {_name(row)} no request ever waited."
            continue
        text += (
            f"\n- Under {_name(row)} it held {theirs['held_per_request']:.0f} "
            f"({theirs['partition_percent']['token_states']:.1f} % token states): "
            f"{_saving(mine['held_per_request'], theirs['held_per_request'])}."
        )
    return text


def waste_kept(paged: Row) -> str:
    """Tail waste and metadata that paging does not avoid."""
    metrics, pool = paged["metrics"], paged["pool"]
    pool_bytes = pool["positions"] * pool["bytes_per_token"]
    text = "Kept: "
    if _known(metrics["tail_per_request"]):
        text += (
            f"{metrics['partition_percent']['tail']:.1f} % of the pool was the rest of "
            f"last blocks, {metrics['tail_per_request']:.1f} positions per running request "
            f"(at most {pool['block_size'] - 1} with blocks of {pool['block_size']}), and "
            f"{metrics['partition_percent']['free']:.1f} % was free while requests waited. "
        )
    return text + (
        f"The block tables take {metrics['table_bytes_peak'] / 1024:.1f} KiB, "
        f"{100 * metrics['table_bytes_peak'] / pool_bytes:.2f} % of the pool's bytes; here "
        "the contiguous systems keep the same tables, because all systems share one kernel."
    )


def kv_shared(paged: Row) -> str | None:
    """What the prefix cache found, and what sharing cost; None: nothing was shared."""
    metrics = paged["metrics"]
    if not metrics["num_cached_tokens"]:
        return None
    text = (
        f"Shared: {metrics['num_cached_tokens']:,} prompt tokens "
        f"({metrics['prefix_hit_percent']:.1f} %) were found in the cache and not computed "
        f"again, for {metrics['num_copied_blocks']:,} copied blocks"
    )
    if duplicates := metrics["duplicate_blocks_peak"]:
        text += f"; at most {duplicates:,} blocks held what another block held, too"
    return text + "."


def capacity_effect(paged: Row, others: Sequence[Row]) -> str:
    """What it did for serving: requests at once, throughput, waiting, repeated work."""
    mine = paged["metrics"]
    parts = []
    for row in others:
        theirs = row["metrics"]
        at_once = _requests_at_once(mine, theirs, _name(row))
        parts.append(f"\n- {at_once}{_speed(mine, theirs)}.")
    text = "Effect on serving capacity, of paged against each:" + "".join(parts)
    queue_percent = 100 * mine["num_queue_steps"] / max(mine["num_steps"], 1)
    if queue_percent < FEW_QUEUE_STEPS_PERCENT:
        text += (
            f"\nOnly {queue_percent:.0f} % of the paged steps had a queue, so means over "
            "these say little. Lower pool_positions or raise the load."
        )
    num_tokens = mine["num_output_tokens"]
    text += (
        f"\nPaged preempted {mine['num_preemptions']} times and computed "
        f"{mine['num_recomputed_tokens']} tokens again, for {num_tokens} tokens of output."
    )
    rejected = {row["metrics"]["num_rejected"] for row in (paged, *others)}
    if len(rejected) > 1:
        text += (
            " THE SYSTEMS REJECTED DIFFERENT REQUESTS, so these numbers compare nothing: "
            "raise pool_positions."
        )
    elif _same_recall([paged, *others]):
        text += (
            f" Recall is the same everywhere, {mine['recall_right']} of "
            f"{mine['recall_answered']} keys, so none of this cost accuracy."
        )
    else:
        text += " THE SYSTEMS DIFFER IN RECALL: a cache is at fault, trust no number here."
    return text


def _requests_at_once(mine: dict, theirs: dict, name: str) -> str:
    if _known(mine["capacity"]) and _known(theirs["capacity"]):
        return (
            f"{name}: {mine['capacity']:.1f} requests at once with a queue against "
            f"{theirs['capacity']:.1f} ({_times(mine['capacity'], theirs['capacity'])})"
        )
    return (
        f"{name}: at most {mine['running_peak']} requests at once against "
        f"{theirs['running_peak']} (one of them never had a queue, so its capacity was "
        "not reached)"
    )


def _speed(mine: dict, theirs: dict) -> str:
    text = ""
    for key, label in (
        ("throughput_tokens_per_s", "throughput"),
        ("ttft_p95_s", "p95 TTFT"),
        ("tpot_p95_s", "p95 TPOT"),
    ):
        if _known(mine[key]) and _known(theirs[key]) and theirs[key] > 0:
            text += f", {label} {_times(mine[key], theirs[key])}"
    return text


def _same_recall(rows: Sequence[Row]) -> bool:
    scores = {
        (row["metrics"]["recall_right"], row["metrics"]["recall_answered"]) for row in rows
    }
    return len(scores) == 1


def _wrapped(text: str) -> str:
    """Lines that fit a terminal; those of a list item are indented."""
    return "\n".join(
        textwrap.fill(line, LINE_WIDTH, subsequent_indent="  " * line.startswith("- "))
        for line in text.splitlines()
    )


def closing_words(rows: Sequence[Row]) -> str:
    """Three paragraphs, and one of sharing where K/V was shared; without a paged row among
    others, why there is no comparison."""
    paged = next((row for row in rows if row["system"] == PAGED), None)
    others = [row for row in rows if row["system"] != PAGED]
    if paged is None:
        return "No paged row was run, so there is nothing to compare the others with."
    parts = [memory_saved(paged, others), waste_kept(paged)]
    if shared := kv_shared(paged):
        parts.append(shared)
    if others:
        parts.append(capacity_effect(paged, others))
    else:
        parts.append("No other system was run to compare it with.")
    return "\n\n".join(_wrapped(part) for part in parts)
