"""Rows say how to repeat a run, and are never lost."""

import errno
import io
import json
import math
import os

import numpy as np
import pytest

from paxkv import results
from paxkv.results import ResultsNotWritten, RunInfo


@pytest.fixture
def info() -> RunInfo:
    return RunInfo(
        experiment="serve",
        kind="measured",
        command="python -m experiments.serve",
        seed=3,
        device="cpu",
        implementation="xla",
        matmul_precision="highest",
        xla_flags="",
    )


def test_facts_of_a_run(info):
    facts = results.run_facts(info)
    assert facts["schema"] == results.SCHEMA_VERSION
    assert facts["kind"] == "measured"
    assert set(facts["versions"]) == {"python", "paxkv", "jax", "jaxlib", "numpy"}
    assert facts["versions"]["numpy"] == np.__version__
    assert set(facts["git"]) == {"revision", "dirty"}
    json.loads(results.to_line(facts))


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind='guessed'"):
        RunInfo(
            experiment="serve",
            kind="guessed",
            command="",
            seed=0,
            device="cpu",
            implementation="xla",
            matmul_precision="highest",
            xla_flags="",
        )


def test_outside_of_a_checkout_there_is_no_revision(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "CHECKOUT", tmp_path)
    assert results.git_state() == {"revision": None, "dirty": None}


def test_a_repository_around_an_installed_package_does_not_count(monkeypatch, tmp_path):
    inside = tmp_path / "site-packages"
    inside.mkdir()
    os.system(f"git init -q {tmp_path}")
    monkeypatch.setattr(results, "CHECKOUT", inside)
    assert results.git_state() == {"revision": None, "dirty": None}


def test_without_git_there_is_no_revision(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert results.git_state() == {"revision": None, "dirty": None}


def test_rows_become_plain_json():
    row = {"a": np.float32(0.5), "b": math.nan, "c": (1, np.arange(2)), "d": {"e": None}}
    assert json.loads(results.to_line(row)) == {
        "a": 0.5,
        "b": None,
        "c": [1, [0, 1]],
        "d": {"e": None},
    }


def test_rows_are_appended(tmp_path):
    path = tmp_path / "rows.jsonl"
    results.save_rows(path, [{"n": 1}, {"n": 2}])
    results.save_rows(path, [{"n": 3}])
    lines = path.read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 3]


def test_a_full_disk_names_path_and_remedy_and_prints_the_rows(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    results.append_row(path, {"n": 0})
    calls = []

    def full_from_second_call(descriptor):
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_from_second_call)
    printed = []
    with pytest.raises(ResultsNotWritten) as caught:
        results.save_rows(path, [{"n": 1}, {"n": 2}, {"n": 3}], printed.append)
    message = str(caught.value)
    assert str(path) in message
    assert "disk is full" in message
    assert "Free some space" in message
    assert [json.loads(line)["n"] for line in printed] == [2, 3]
    # what was saved before is whole, and no half line follows it
    lines = path.read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [0, 1]


def test_a_line_cut_short_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    results.append_row(path, {"n": 0})

    class ShortFile(io.FileIO):
        def write(self, data):
            return super().write(data[:3])

    monkeypatch.setattr(
        "builtins.open", lambda path, mode, buffering: ShortFile(path, mode.strip("b"))
    )
    with pytest.raises(ResultsNotWritten, match="disk is full"):
        results.append_row(path, {"n": 1})
    assert path.read_bytes() == b'{"n": 0}\n'


def test_an_unusable_folder_is_found_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "results"
    with pytest.raises(ResultsNotWritten, match="part of the path is a file") as caught:
        results.prepare_folder(folder)
    assert str(folder) in str(caught.value)
    results.prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_without_permission_says_so(tmp_path, monkeypatch):
    def refuse(self, data):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    with pytest.raises(ResultsNotWritten, match="no permission to write"):
        results.prepare_folder(tmp_path)
