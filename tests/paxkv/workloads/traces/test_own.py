import json

import pytest

from paxkv.request_options import Adapter, RequestOptions
from paxkv.workloads.drawing import Workload
from paxkv.workloads.sessions import Session, Turn
from paxkv.workloads.traces import own
from paxkv.workloads.traces.reading import TraceReader
from paxkv.workloads.workload_config import WorkloadConfig

LINE = {"arrival_s": 0.25, "turns": [{"prompt_ids": [5, 8], "max_tokens": 3}]}


def read(path):
    reader = TraceReader(path, trace_format="paxkv")
    return list(reader), reader.report


def write(path, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def test_a_line_is_a_session(tmp_path):
    sessions, report = read(write(tmp_path / "w.jsonl", LINE))
    turn = Turn(prompt_ids=(5, 8), max_tokens=3)
    assert sessions == [Session(arrival_s=0.25, turns=(turn,))]
    assert report.num_rows == 1 and not report.malformed


SESSIONS = (
    Session(
        arrival_s=0.1 + 0.2,
        turns=(
            Turn(prompt_ids=(1, 2), max_tokens=5),
            Turn(prompt_ids=(3,), max_tokens=1, think_s=2.5),
        ),
        options=RequestOptions(priority=3, tenant="é", salt="s", reads_cache=False),
        num_samples=3,
        use_beam_search=True,
        max_prompt_tokens=100,
    ),
    Session(arrival_s=7.0, turns=(Turn(prompt_ids=(9,) * 50, max_tokens=8),)),
)


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "w.jsonl"
    assert own.write_sessions(path, SESSIONS) == 2
    assert read(path)[0] == list(SESSIONS)


def test_a_drawn_workload_is_replayed_exactly(tmp_path):
    settings = {"structure": "chat", "max_turns": 3, "think_s": 1.0, "arrival": "poisson"}
    config = WorkloadConfig(num_requests=15, too_long="clip", **settings)
    drawn = list(Workload(config, max_context=2048, vocab_size=500))
    own.write_sessions(tmp_path / "w.jsonl", drawn)
    replayed = WorkloadConfig(
        num_requests=None,
        structure="trace",
        arrival="trace",
        trace_path=str(tmp_path / "w.jsonl"),
        seed=99,
    )
    assert list(Workload(replayed, max_context=2048, vocab_size=500)) == drawn


@pytest.mark.parametrize(
    "options",
    [
        RequestOptions(adapter=Adapter(name="a", version="1")),
        RequestOptions(salt=b"bytes"),
        RequestOptions(position_offset=1),
    ],
)
def test_options_without_a_name_are_refused(tmp_path, options):
    session = Session(arrival_s=0.0, turns=SESSIONS[1].turns, options=options)
    with pytest.raises(ValueError, match="which the format cannot hold"):
        own.write_sessions(tmp_path / "w.jsonl", [session])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting"),
        ({"turns": LINE["turns"]}, "has no arrival_s"),
        (LINE | {"turns": []}, "turns is no list of at least one turn"),
        (LINE | {"turns": [3]}, "has a turn that is a int"),
        (LINE | {"turns": [{"prompt_ids": [1]}]}, "has no max_tokens"),
        (LINE | {"turns": [{"prompt_ids": [], "max_tokens": 1}]}, "has a turn with no pr"),
        (LINE | {"turns": [{"prompt_ids": [1], "max_tokens": 0}]}, "max_tokens=0 must be"),
        (
            LINE | {"turns": [{"prompt_ids": [1], "max_tokens": 1, "think_s": -1}]},
            "think_s=-1 is negative",
        ),
        (
            LINE | {"turns": [{"prompt_ids": [1], "max_tokens": 1, "wait": 1}]},
            "has wait, which is none of",
        ),
        (LINE | {"arrival_s": None}, "arrival_s=None is no number"),
        (LINE | {"num_samples": 1.5}, "num_samples=1.5 is no integer"),
        (LINE | {"use_beam_search": "yes"}, "use_beam_search='yes' is no bool"),
        (LINE | {"max_prompt_tokens": 0}, "max_prompt_tokens=0 must be"),
        (LINE | {"colour": 1}, "has colour, which is none of arrival_s"),
        (LINE | {"options": 3}, "options is a int, not an object"),
        (LINE | {"options": {"media": []}}, "has media, which is none of priority"),
        (LINE | {"options": {"salt": ""}}, "salt='' is empty"),
    ],
)
def test_malformed_lines_are_told(tmp_path, line, why):
    sessions, report = read(write(tmp_path / "w.jsonl", LINE, line, LINE))
    assert len(sessions) == 2
    (told,) = report.malformed
    assert told.startswith(f"line 2: {why}")
