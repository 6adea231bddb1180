"""Attention per token is what the rows say, by block size."""

from paxkv.analysis.reports.attention_cost import (
    attention_charts,
    attention_note,
    attention_tables,
)


def row(block_size, ms, context=1024, is_prefill=False):
    return {
        "problem": {
            "batch": 2,
            "context": context,
            "block_size": block_size,
            "dtype": "float32",
            "is_prefill": is_prefill,
        },
        "median_ms": {"cpu": ms},
    }


ROWS = [row(16, 2.56), row(32, 2.048), row(1024, 2.048), row(16, 9.0, context=64)]


def test_nanoseconds_per_token():
    [table] = attention_tables(ROWS)
    assert table.head == (
        "problem",
        "one piece",
        "blocks of 16",
        "blocks of 32",
        "most / least",
    )
    # 2.56 ms of 2 * 1,024 tokens: 1,250 ns each
    assert table.lines[0] == (
        "cpu, float32, 2 × 1,024", "1000.00", "1250.00", "1000.00", "1.25",
    )  # fmt: skip
    assert table.lines[1][1:] == ("-", f"{9.0e6 / 128:.2f}", "-", "1.00")


def test_the_claim_beside_what_was_found():
    note = attention_note(ROWS)
    assert note is not None and "20-26 %" in note
    assert "blocks took +0 to +25 % of the time of one piece more" in note
    assert attention_note(ROWS[:2]) is None
    yardstick = [row | {"median_ms": {"read": 1.0 + i}} for i, row in enumerate(ROWS)]
    assert attention_note(yardstick) is None


def test_the_figure_has_the_most_tokens():
    [chart] = attention_charts(ROWS)["attention_decoding"]
    [series] = chart.series
    assert series.x == (16.0, 32.0) and series.y == (1250.0, 1000.0)
    assert attention_charts([]) == {} and attention_tables([]) == []
    assert list(
        attention_charts([row(8, 1.0, is_prefill=True), row(16, 1.0, is_prefill=True)])
    ) == ["attention_prefill"]
