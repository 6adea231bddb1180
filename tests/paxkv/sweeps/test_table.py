"""The table has each row once, whole, and only of its own sweep."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paxkv.results import ResultsNotWritten
from paxkv.sweeps.table import DONE, FAILED, claimed, read_table

FILE = "configs/ablations/block_size.py"
ABOUT = {"cell_id": "a", "cell": {"cache.block_size": 16}}
ROWS = [{"profile": "ideal"}, {"profile": "calibrated"}]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_a_cell_is_done_when_all_its_rows_are_there(tmp_path):
    with claimed(tmp_path, FILE) as table:
        assert table.status("a") is None
        table.add_results(ROWS, ABOUT)
        assert table.status("a") == DONE
    assert lines(tmp_path) == [
        {"profile": "ideal", **ABOUT, "cell_row": [0, 2], "status": "done"},
        {"profile": "calibrated", **ABOUT, "cell_row": [1, 2], "status": "done"},
    ]
    assert read_table(tmp_path).status("a") == DONE


def test_half_a_cell_is_completed_without_doubles(tmp_path):
    with claimed(tmp_path, FILE) as table:
        table.add_results(ROWS, ABOUT)
    path = tmp_path / "rows.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (0, 1, first - 1, first, first + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])  # what a kill may leave
        assert read_table(tmp_path).status("a") is None
        with claimed(tmp_path, FILE) as table:
            assert table.status("a") is None
            assert path.read_bytes() == whole[: first if cut >= first else 0]
            table.add_results(ROWS, ABOUT)
        assert path.read_bytes() == whole


def test_failures_stay_until_the_cell_is_done(tmp_path):
    with claimed(tmp_path, FILE) as table:
        table.add_failure({"seed": 1, **ABOUT}, "exit code 1")
        assert table.status("a") == FAILED
    with claimed(tmp_path, FILE) as table:
        assert (table.status("a"), table.failures["a"]) == (FAILED, "exit code 1")
        table.add_results(ROWS, ABOUT)
        assert table.status("a") == DONE
    assert [row["status"] for row in lines(tmp_path)] == [FAILED, DONE, DONE]


def test_two_sweeps_in_one_folder(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from paxkv.sweeps.table import claimed\n"
        f"with claimed(pathlib.Path({str(tmp_path)!r}), {FILE!r}):\n"
        "    print('claimed', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"claimed\n"
        with (
            pytest.raises(ValueError, match=f"another sweep, process {other.pid}; wait"),
            claimed(tmp_path, FILE),
        ):
            pass
        other.kill()
        other.wait()
    # the lock of one that was killed is nobody's
    assert (tmp_path / "sweep.lock").read_text() == f"{other.pid}\n"
    with claimed(tmp_path, FILE):
        assert (tmp_path / "sweep.lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_of_another_config_or_schema(tmp_path, monkeypatch):
    with claimed(tmp_path, FILE) as table:
        table.add_results(ROWS, ABOUT)
    before = (tmp_path / "rows.jsonl").read_bytes()
    other = "configs/ablations/eviction.py"
    with pytest.raises(ValueError, match=f"results of {FILE}, not of {other}"):  # noqa: SIM117
        with claimed(tmp_path, other):
            pass
    monkeypatch.setattr("paxkv.sweeps.table.SCHEMA_VERSION", 7)
    with pytest.raises(ValueError, match="rows of schema 1, this program writes schema 7"):  # noqa: SIM117
        with claimed(tmp_path, FILE):
            pass
    assert (tmp_path / "rows.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", '{"system": "paged"}\n', "no sweep wrote it"),
        ("sweep.json", "{", "says nothing that can be read"),
        ("sweep.json", '{"schema": 1}', "says nothing that can be read"),
    ],
)
def test_a_folder_that_is_no_sweeps(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message), claimed(tmp_path, FILE):
        pass
    assert (tmp_path / name).read_text() == text


def test_a_line_that_is_no_row_is_named(tmp_path):
    with claimed(tmp_path, FILE) as table:
        table.add_results(ROWS, ABOUT)
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write("{}\n")
    with pytest.raises(ValueError, match=r"line 3 of .*rows.jsonl is no row of a sweep"):
        read_table(tmp_path)


def test_a_full_disk_leaves_whole_rows(tmp_path, monkeypatch):
    with claimed(tmp_path, FILE) as table:
        table.add_failure({"seed": 1, **ABOUT}, "exit code 1")
        written = []

        def full_from_second_call(descriptor):
            written.append(descriptor)
            if len(written) > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full_from_second_call)
        with pytest.raises(ResultsNotWritten, match="the disk is full"):
            table.add_results(ROWS, ABOUT)
        monkeypatch.undo()
    assert [row["status"] for row in lines(tmp_path)] == [FAILED, DONE]
    with claimed(tmp_path, FILE) as table:
        assert table.status("a") == FAILED
        table.add_results(ROWS, ABOUT)
    assert [row.get("cell_row") for row in lines(tmp_path)] == [None, [0, 2], [1, 2]]
