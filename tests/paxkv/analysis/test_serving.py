"""Table and figure of a whole comparison, served by the fake model."""

import json
from typing import Any

import pytest

from paxkv.analysis.closing import closing_words
from paxkv.analysis.plots import draw_serving
from paxkv.analysis.serving import serve_table, serving_metrics
from paxkv.analysis.timeline import TIMELINE_POINTS
from paxkv.analysis.waste import CLASSES
from paxkv.engine import Engine
from paxkv.replay import Kept, Replay, Replica, Stopwatch, serve_in_turns
from paxkv.results import ResultsNotWritten, to_line
from paxkv.workloads.sessions import Session, Turn
from tests.fakes import FakeClock, FakeExecutor, make_scheduler

SYSTEMS = ("contiguous_max", "contiguous_pow2", "contiguous_oracle", "paged")


def serve(
    system: str, num_requests: int = 30, num_blocks: int = 17, **settings: Any
) -> dict[str, Any]:
    """A row: blocks of 4 under `system`, contexts of at most 32."""
    items = tuple(
        Session(
            arrival_s=0.0,
            turns=(
                Turn(
                    prompt_ids=tuple(range(1, 4 + index % 7)),
                    max_tokens=3 + index * 5 % 20,
                ),
            ),
        )
        for index in range(num_requests)
    )
    source = FakeClock()
    clock = Stopwatch(source)
    scheduler = make_scheduler(
        allocator=system,
        num_blocks=num_blocks,
        max_context=32,
        max_num_batched_tokens=32,
        **settings,
    )
    executor = FakeExecutor(num_blocks, 4, clock=source, duration_s=0.01)
    kept = Kept()
    replica = Replica(engine=Engine(scheduler, executor, clock), clock=clock)
    serve_in_turns([Replay([replica], items, kept)])
    return {
        "system": system,
        "kind": "simulated",
        "device": "fake",
        "implementation": "none",
        "config": {"cache": {"dtype": "int32"}},
        "pool": {"num_blocks": 17, "block_size": 4, "positions": 64, "bytes_per_token": 4},
        "metrics": {
            **serving_metrics(kept.requests, kept.steps),
            "recall_right": 9,
            "recall_answered": 10,
            "num_programs": 3,
            "compile_s": 0.5,
        },
    }


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [serve(system) for system in SYSTEMS]


def test_paged_runs_more_than_oracle_than_max(rows):
    capacity = {row["system"]: row["metrics"]["capacity"] for row in rows}
    assert capacity["contiguous_max"] == pytest.approx(2.0, abs=0.15)  # 64 / 32
    assert capacity["paged"] > capacity["contiguous_oracle"] > capacity["contiguous_max"]


def test_shares_of_the_pool_sum_to_100(rows):
    for row in rows:
        metrics = row["metrics"]
        assert sum(metrics["partition_percent"].values()) == pytest.approx(100)
        assert sum(metrics["paper_percent"].values()) == pytest.approx(100)
    paged = rows[-1]["metrics"]["partition_percent"]
    assert paged["reserved"] == paged["internal"] == paged["rounding"] == 0


def test_table_fits_a_terminal_and_reads_the_same_from_json(rows):
    table = serve_table(rows)
    assert max(len(line) for line in table.splitlines()) <= 80
    for words in ("token states", "TTFT p95, s", "recall, % of keys", "preemptions"):
        assert words in table
    assert "90.00" in table
    assert serve_table([json.loads(to_line(row)) for row in rows]) == table


def test_unknown_numbers_are_dashes():
    row = serve("paged", num_requests=1)
    assert "-" in serve_table([row])
    assert "nan" not in serve_table([row])
    again = json.loads(to_line(row))
    assert serve_table([again]) == serve_table([row])


def test_a_pool_too_small_for_one_system_does_not_hide_the_others(tmp_path):
    rows = [serve("contiguous_max", num_blocks=8), serve("paged", num_blocks=8)]
    assert rows[0]["metrics"]["num_rejected"] == 30
    assert rows[1]["metrics"]["num_finished"] == 30
    assert "nan" not in serve_table(rows)
    assert "REJECTED DIFFERENT REQUESTS" in closing_words(rows)
    pytest.importorskip("matplotlib")
    draw_serving(rows, tmp_path / "serve.png")


def test_timeline_is_thinned(rows):
    timeline = rows[0]["metrics"]["timeline"]
    assert len(timeline["time_s"]) == len(timeline["running"]) <= TIMELINE_POINTS
    assert timeline["time_s"][0] == 0.0
    assert timeline["time_s"] == sorted(timeline["time_s"])


def test_what_is_shared_and_moved_is_counted_and_shown_where_there_is_any(rows):
    assert "shared and moved" not in serve_table(rows)
    assert "shared and moved" in serve_table(rows, with_sharing=True)
    sharing = {"prefix_caching": True, "granularity": "token"}
    row = serve("paged", **sharing, host_blocks=8, pressure="preempt_swap")
    metrics = row["metrics"]
    num_prompt = sum(len(range(1, 4 + index % 7)) for index in range(30))
    found = metrics["num_cached_tokens"]
    assert 0 < found < num_prompt
    assert metrics["prefix_hit_percent"] == pytest.approx(100 * found / num_prompt)
    assert metrics["num_copied_blocks"] > 0
    assert metrics["num_swapped_out_blocks"] >= metrics["num_swapped_in_blocks"] > 0
    cells = {line[:31].strip(): line[31:] for line in serve_table([row]).splitlines()}
    copied = cells["blocks copied"].split()
    assert copied == [f"{metrics['num_copied_blocks']:,}"]


def test_timeline_has_every_class_of_positions(rows):
    for row in [*rows, serve("paged", prefix_caching=True)]:
        timeline = row["metrics"]["timeline"]
        assert list(timeline["positions"]) == [*CLASSES]
        steps = zip(*timeline["positions"].values(), strict=True)
        assert {sum(classes) for classes in steps} == {64}
        assert len(timeline["duplicate_blocks"]) == len(timeline["time_s"])
    assert max(timeline["positions"]["cached"]) > 0
    assert max(rows[-1]["metrics"]["timeline"]["positions"]["cached"]) == 0


def test_closing_words_of_real_rows(rows):
    words = closing_words(rows)
    assert "nan" not in words
    assert words.count("Under contiguous-") == 3


def test_figure(rows, tmp_path):
    pytest.importorskip("matplotlib")
    draw_serving(rows, tmp_path / "serve.png")
    assert (tmp_path / "serve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["serve.png"]
    draw_serving([json.loads(to_line(serve("paged", 1)))], tmp_path / "one.png")
    with pytest.raises(ResultsNotWritten, match="serve.png"):
        draw_serving(rows, tmp_path / "serve.png" / "serve.png")


def test_figure_without_matplotlib_names_the_extra(rows, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"paxkv\[plots\]"):
        draw_serving(rows, tmp_path / "serve.png")
