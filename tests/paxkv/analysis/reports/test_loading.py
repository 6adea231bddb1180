"""Rows are found, and what is no row is named."""

import json

import pytest

from paxkv.analysis.reports.loading import (
    failure_text,
    load_rows,
    name_of,
    number_at,
    place_of,
    value_at,
)
from tests.report_rows import trial_row, write_rows


def test_folders_and_files(tmp_path):
    own = write_rows(tmp_path / "sweep" / "rows.jsonl", trial_row(name="a"))
    write_rows(tmp_path / "sweep" / "cells" / "x" / "rows.jsonl", trial_row(name="b"))
    other = write_rows(tmp_path / "other.jsonl", trial_row(name="c"))
    loaded = load_rows([tmp_path / "sweep", str(other), own])
    assert [name_of(row) for row in loaded.rows] == ["a", "c"]
    assert loaded.paths == (own, other)
    # a folder without rows of its own has those below it
    below = load_rows([tmp_path / "sweep" / "cells"])
    assert [name_of(row) for row in below.rows] == ["b"]


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path):
    torn = json.dumps(trial_row(name="torn"))[:40]
    path = write_rows(
        tmp_path / "rows.jsonl", trial_row(), trial_row(), extra=f"[1]\n\n{torn}"
    )
    loaded = load_rows([path])
    assert len(loaded.rows) == 1  # the second is the same line
    assert loaded.malformed[0] == f"{path}:3 is no row: it has no schema."
    assert loaded.malformed[1].startswith(f"{path}:5 is no JSON (")


def test_an_unknown_kind_is_no_row(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", trial_row(kind="guessed"))
    assert "kind='guessed'" in load_rows([path]).malformed[0]


def test_another_schema_is_refused_with_both(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", trial_row() | {"schema": 99})
    with pytest.raises(ValueError, match=r"rows.jsonl:1 is a row of schema 99.*schema 1;"):
        load_rows([path])


def test_failed_rows_are_apart(tmp_path):
    failed = {
        "schema": 1,
        "status": "failed",
        "seed": 3,
        "cell": {"cache.block_size": 8},
        "error": "Traceback\nValueError: too small",
    }
    loaded = load_rows([write_rows(tmp_path / "rows.jsonl", failed)])
    assert not loaded.rows
    assert failure_text(loaded.failed[0]) == (
        "cache.block_size=8, seed 3: ValueError: too small"
    )


def test_nothing_there(tmp_path):
    with pytest.raises(ValueError, match="is neither a file nor a folder"):
        load_rows([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match=r"holds no rows\.jsonl"):
        load_rows([tmp_path])


def test_values_and_places():
    row = trial_row(running_mean=3)
    assert number_at(row, "metrics.running_mean") == 3.0
    assert number_at(row, "metrics.slo.goodput_per_s") is None
    assert number_at(row, "name") is None
    assert value_at(row, "config.cache") == {"block_size": 16}
    assert place_of(row) == "simulated on 1 x a100_40, calibrated profile"
    measured = trial_row(kind="measured", profile="measured", device="cpu")
    assert place_of(measured) == "measured on cpu"
