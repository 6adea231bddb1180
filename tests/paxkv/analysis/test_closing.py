"""What the closing words say is what the rows say, whoever wins."""

import math
from typing import Any

import pytest

from paxkv.analysis import closing
from paxkv.analysis.waste import CLASSES


def make_row(system: str, **metrics: Any) -> dict[str, Any]:
    shares = dict.fromkeys(CLASSES, 0.0) | {"token_states": 50.0, "tail": 5.0, "free": 2.5}
    known = {
        "held_per_request": 100.0,
        "tail_per_request": 7.5,
        "partition_percent": shares,
        "table_bytes_peak": 2048,
        "capacity": 10.0,
        "num_rejected": 0,
        "num_steps": 200,
        "num_queue_steps": 150,
        "running_peak": 12,
        "throughput_tokens_per_s": 500.0,
        "ttft_p95_s": 4.0,
        "tpot_p95_s": 0.02,
        "num_preemptions": 3,
        "num_recomputed_tokens": 40,
        "num_output_tokens": 900,
        "recall_right": 99,
        "recall_answered": 100,
        "num_cached_tokens": 0,
    }
    pool = {"num_blocks": 65, "block_size": 16, "positions": 1024, "bytes_per_token": 512}
    return {"system": system, "pool": pool, "metrics": known | metrics}


def closing_words(rows: list[dict[str, Any]]) -> str:
    """Without the line breaks."""
    text = closing.closing_words(rows)
    assert max(len(line) for line in text.splitlines()) <= closing.LINE_WIDTH
    return " ".join(text.split())


def test_paged_wins():
    words = closing_words(
        [
            make_row("contiguous_max", held_per_request=400.0, capacity=2.5),
            make_row(
                "paged",
                throughput_tokens_per_s=1000.0,
                ttft_p95_s=1.0,
                tpot_p95_s=0.03,
            ),
        ]
    )
    assert "a running request held 100 positions (50 KiB) under paged" in words
    assert "Under contiguous-max it held 400" in words
    assert "paging saved 75 %" in words
    assert "5.0 % of the pool was the rest of last blocks, 7.5 positions" in words
    assert "at most 15 with blocks of 16" in words
    assert "2.0 KiB, 0.39 % of the pool's bytes" in words
    assert "10.0 requests at once with a queue against 2.5 (4.00 times)" in words
    assert "throughput 2.00 times, p95 TTFT 0.25 times, p95 TPOT 1.50 times" in words
    assert "preempted 3 times and computed 40 tokens again" in words
    assert "Recall is the same everywhere, 99 of 100 keys" in words


def test_paged_loses():
    words = closing_words(
        [
            make_row("paged", held_per_request=110.0, throughput_tokens_per_s=400.0),
            make_row("contiguous_oracle", capacity=12.5),
        ]
    )
    assert "paging saved nothing, it held 10 % more" in words
    assert "against 12.5 (0.80 times), throughput 0.80 times" in words
    assert "paging saved 1" not in words


def test_a_difference_within_the_noise_is_none():
    words = closing_words(
        [
            make_row("paged", held_per_request=101.0, capacity=10.1),
            make_row("contiguous_oracle"),
        ]
    )
    assert "paging saved nothing, the two are within 2 %" in words
    assert "10.1 requests at once with a queue against 10.0 (the same within 2 %)" in words


@pytest.mark.parametrize("unknown", [math.nan, None])  # None: read back from JSON
def test_without_a_queue_nothing_is_claimed(unknown):
    queueless = {
        "held_per_request": unknown,
        "tail_per_request": unknown,
        "capacity": unknown,
        "partition_percent": dict.fromkeys(CLASSES, unknown),
    }
    both = [make_row("paged", **queueless), make_row("contiguous_max", **queueless)]
    words = closing_words(both)
    assert "under paged no request ever waited" in words
    assert "capacity was not reached" in words
    assert "saved nothing" not in words and "nan" not in words and "None" not in words
    words = closing_words([make_row("paged"), make_row("contiguous_max", **queueless)])
    assert "Under contiguous-max no request ever waited" in words
    words = closing_words([make_row("paged", **queueless), make_row("contiguous_max")])
    assert "at most 12 requests at once against 12" in words


def test_a_queue_that_was_rare_is_told():
    pair = [make_row("paged", num_queue_steps=6), make_row("contiguous_max")]
    assert "Only 3 % of the paged steps had a queue" in closing_words(pair)
    pair = [make_row("paged"), make_row("contiguous_max", num_queue_steps=6)]
    assert "Only" not in closing_words(pair)


def test_a_difference_in_recall_is_shouted():
    words = closing_words([make_row("paged", recall_right=98), make_row("contiguous_max")])
    assert "THE SYSTEMS DIFFER IN RECALL" in words
    assert "cost accuracy" not in words


def test_different_rejections_are_shouted():
    words = closing_words(
        [make_row("paged"), make_row("contiguous_max", num_rejected=1, recall_right=97)]
    )
    assert "REJECTED DIFFERENT REQUESTS" in words
    assert "IN RECALL" not in words


def test_shared_kv_is_told_where_there_is_any():
    hits = {"num_cached_tokens": 1280, "prefix_hit_percent": 12.34, "num_copied_blocks": 3}
    pair = [make_row("paged", **hits, duplicate_blocks_peak=0), make_row("contiguous_max")]
    words = closing_words(pair)
    told = "1,280 prompt tokens (12.3 %) were found in the cache and not computed again"
    assert f"Shared: {told}, for 3 copied blocks. Effect" in words
    pair[0] = make_row("paged", **hits, duplicate_blocks_peak=2)
    assert "; at most 2 blocks held what another block held, too." in closing_words(pair)
    assert "Shared" not in closing_words([make_row("paged"), make_row("contiguous_max")])


def test_rows_that_cannot_be_compared():
    assert "No other system" in closing_words([make_row("paged")])
    assert "No paged row" in closing_words([make_row("contiguous_max")])
