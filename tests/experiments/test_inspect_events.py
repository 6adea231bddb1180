"""A recorded run becomes a trace, a picture, a page and a summary; bad logs one line."""

import json

import pytest

from paxkv.event_log import EventLog
from paxkv.events import Event, EventKind
from tests.event_streams import random_events, sample_events
from tests.experiments.running import run_experiment


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, num_blocks_per_group=(5,), block_size=4) as log:
        for event in sample_events():
            log(event)
    return path


def inspect(log, out, *flags):
    return run_experiment("inspect_events", f"--events={log}", f"--out={out}", *flags)


def test_files_and_summary(log, tmp_path):
    done = inspect(log, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert json.loads((out / "trace.json").read_text())["traceEvents"]
    assert (out / "pool.png").read_bytes().startswith(b"\x89PNG")
    assert "Blocks of the pool: events.jsonl" in (out / "pool.html").read_text()
    counts = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[:11])
    assert counts["requests with a hit"] == "1"
    assert counts["blocks evicted"] == "1"
    assert counts["blocks copied on write"] == "1"
    assert counts["blocks swapped out"] == "1"
    assert "at most 3 had an owner at once (75%), and 1 at the end" in done.stdout


def test_a_cut_last_line_is_told_and_the_rest_used(tmp_path):
    events, _ = random_events(1)
    path = tmp_path / "cut.jsonl"
    with EventLog(path, num_blocks_per_group=(17, 9), block_size=4) as log:
        for event in events:
            log(event)
    path.write_bytes(path.read_bytes()[:-9])
    done = inspect(path, tmp_path / "out", "--color=owner")
    assert done.returncode == 0, done.stderr
    assert f"{path}:{len(events) + 1}: is no JSON" in done.stdout
    assert "The line was cut off; what precedes it counts." in done.stdout
    assert "cache group 1: 8 blocks x 4 tokens" in done.stdout
    assert '"colour":"owner"' in (tmp_path / "out" / "pool.html").read_text()


def replace_schema(log):
    log.write_text(log.read_text().replace('"schema":1', '"schema":2', 1))


def break_third_line(log):
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:2], "{\n", *lines[3:]]))


def add_contradiction(log):
    with EventLog(log, num_blocks_per_group=(5,), block_size=4) as again:
        again(Event(kind=EventKind.FREE, step=1, now_s=0.0, blocks=(1,)))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda log: log.unlink(), "No such file"),
        (lambda log: log.write_text(""), "is empty"),
        (replace_schema, "is of schema 2, and schema 1 can be read"),
        (break_third_line, ":3: is no JSON"),
        (add_contradiction, "event 1, free at step 1: block=1 is free"),
    ],
)
def test_bad_logs_are_refused_in_one_line(log, tmp_path, spoil, says):
    spoil(log)
    done = inspect(log, tmp_path / "out")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_bad_flags_are_refused(log, tmp_path):
    done = inspect(log, tmp_path / "out", "--color=heat")
    assert done.returncode == 2
    assert "heat" in done.stderr
    assert "Traceback" not in done.stderr
