import json

import pytest

from paxkv.sampling_params import SamplingParams
from paxkv.simulation.step_records import (
    RecordingExecutor,
    StepRecord,
    append_step,
    read_steps,
    step_row,
    write_steps,
)
from tests.fakes import make_engine
from tests.priced import decodes, prefill

RECORDS = [
    StepRecord(work=decodes(3, 40), duration_s=2e-3, host_s=1e-4, block_size=16),
    StepRecord(work=prefill(20, 2, 9), duration_s=5e-3, host_s=0.0, block_size=8),
]


def test_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "steps.jsonl"
    write_steps(path, RECORDS[:1])
    append_step(path, RECORDS[1])
    assert read_steps(path) == RECORDS


@pytest.mark.parametrize(
    "change, message",
    [
        ({"duration_s": -1.0}, "duration_s=-1.0 must be ≥ 0"),
        ({"num_seqs": 1.5}, "num_seqs=1.5 is no integer"),
        ({"prefill_pairs": [-1]}, "prefill_pairs=-1 must be >= 0"),
        ({"prefill_pairs": [1, 2]}, "its lists must have one entry per cache group"),
        ({"block_size": 0}, "block_size=0 must be >= 1"),
        ({"other": 1}, r"it lacks \[\] and has unknown \['other'\]"),
    ],
)
def test_wrong_lines_are_named(tmp_path, change, message):
    path = tmp_path / "steps.jsonl"
    write_steps(path, RECORDS)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(step_row(RECORDS[0]) | change) + "\n")
    with pytest.raises(ValueError, match=f"line 3, is no step: {message}"):
        read_steps(path)


@pytest.mark.parametrize("line", ["{", "[1]", "3"])
def test_lines_that_are_no_object_are_named(tmp_path, line):
    path = tmp_path / "steps.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1, is no step"):
        read_steps(path)


def test_empty_file_is_refused(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.touch()
    with pytest.raises(ValueError, match="has no steps; name a file that serve_trace"):
        read_steps(path)


def test_recorder_keeps_what_each_step_asked_for():
    engine = make_engine(block_size=4)
    engine.executor = recorder = RecordingExecutor(engine.executor, 4)
    engine.add(range(10), SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))
    records = []
    while engine.has_unfinished:
        records.append(recorder.record(engine.step().metrics))
    assert [record.work.num_prefill_tokens for record in records] == [10, 0, 0]
    assert records[0].work.prefill_pairs == (55,)
    assert [record.work.decode_read_tokens for record in records] == [(0,), (12,), (12,)]
    assert all(record.duration_s == 1.0 and record.block_size == 4 for record in records)
    assert all(record.host_s >= 0 for record in records)
    assert recorder.record(engine.step().metrics) is None
