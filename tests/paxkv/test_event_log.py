"""A log gives back the events it got, and says what is wrong with a line."""

import errno
import json
import math
from pathlib import Path

import pytest

from paxkv.event_log import SCHEMA_VERSION, EventLog, read_events
from paxkv.events import Event, EventKind
from paxkv.results import ResultsNotWritten
from tests.event_streams import random_events, sample_events

STEP = '{"kind":"step","step":1,"now_s":2.5}'


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def write(path, events, num_blocks=(5,)):
    with EventLog(path, num_blocks_per_group=num_blocks, block_size=4) as log:
        for event in events:
            log(event)


def test_events_come_back(path):
    events, _ = random_events(seed=1)
    write(path, events, (17, 9))
    header, stream = read_events(path)
    assert header.num_blocks_per_group == (17, 9)
    assert header.block_size == 4
    assert header.versions["paxkv"]
    assert [*stream] == events


def test_events_of_all_fields_come_back(path):
    write(path, sample_events())
    _, stream = read_events(path)
    assert [*stream] == sample_events()


def test_only_fields_without_their_default_are_written(path):
    write(path, [Event(kind=EventKind.STEP, step=1, now_s=2.5)])
    header, line = path.read_text().splitlines()
    assert json.loads(header)["schema"] == SCHEMA_VERSION
    assert line == STEP


def test_header_is_written_at_once_and_events_in_the_end(path):
    log = EventLog(path, num_blocks_per_group=(5,), block_size=4)
    log(Event(kind=EventKind.STEP, step=1, now_s=0.0))
    assert [*read_events(path)[1]] == []
    log.close()
    log.close()
    assert len([*read_events(path)[1]]) == 1


def test_what_json_cannot_say_is_refused(path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(path, [Event(kind=EventKind.STEP, step=1, now_s=math.nan)])


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ResultsNotWritten, match="no-folder"):
        EventLog(tmp_path / "no-folder" / "a", num_blocks_per_group=(5,), block_size=4)


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named():
    with pytest.raises(ResultsNotWritten, match="the disk is full"):
        EventLog(FULL, num_blocks_per_group=(5,), block_size=4)


def test_a_disk_that_fills_up_is_named(path):
    log = EventLog(path, num_blocks_per_group=(5,), block_size=4)

    class Full:
        def write(self, _):
            raise OSError(errno.ENOSPC, "full")

    log.close()
    log._file = Full()
    with pytest.raises(ResultsNotWritten, match=r"events\.jsonl.*the disk is full"):
        log(Event(kind=EventKind.STEP, step=1, now_s=0.0))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "is no JSON"),
        ("[1]", "no object"),
        ('{"kind":"explode","step":1,"now_s":0.0}', "kind='explode', which must be one of"),
        ('{"kind":["step"],"step":1,"now_s":0.0}', "kind="),
        ('{"kind":"step","step":1}', "has no now_s"),
        ('{"kind":"step","step":-1,"now_s":0}', "step=-1, which must be an integer ≥ 0"),
        ('{"kind":"step","step":true,"now_s":0}', "step=True"),
        ('{"kind":"step","step":1,"now_s":NaN}', "now_s=nan"),
        ('{"kind":"free","step":1,"now_s":0,"blocks":[1,"2"]}', "blocks="),
        ('{"kind":"step","step":1,"now_s":0,"tokens":3}', "unknown field 'tokens'"),
        ('{"kind":"step","step":1,"now_s":0,"detail":3}', "detail=3, which must be text"),
        ("\xff", "is no JSON"),
        ("", "is no JSON"),
    ],
)
def test_malformed_lines_are_named(path, line, says):
    write(path, [])
    with path.open("a", encoding="latin-1") as file:
        file.write(f"{STEP}\n{line}\n{STEP}\n")
    _, stream = read_events(path, on_cut_line=pytest.fail)  # it is not the last one
    assert next(stream).step == 1
    with pytest.raises(ValueError) as caught:
        next(stream)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert says in str(caught.value)


def test_every_cut_of_the_last_line_is_told(path):
    write(path, sample_events())
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(last)):
        path.write_bytes(whole[:-cut])
        told = []
        events = [*read_events(path, on_cut_line=told.append)[1]]
        if cut == 1:  # only the newline is missing
            assert events == sample_events() and not told
            continue
        assert events == sample_events()[:-1]
        (message,) = told
        assert message.startswith(f"{path}:{len(events) + 2}: ")
        assert "cut off" in message
        with pytest.raises(ValueError, match="is no JSON"):
            [*read_events(path)[1]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("rubbish\n", "is no header"),
        ("[]\n", "is no header"),
        (STEP + "\n", "is no header"),
        ('{"format":"paxkv events","schema":99}\n', "is of schema 99, and schema 1 can"),
        ('{"format":"paxkv events","schema":1,"block_size":4}\n', "per_group=None"),
        (
            '{"format":"paxkv events","schema":1,"block_size":4,'
            '"num_blocks_per_group":[1]}\n',
            "integers ≥ 2",
        ),
    ],
)
def test_other_files_are_refused(path, text, says):
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_events(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_missing_file_is_named(path):
    with pytest.raises(FileNotFoundError, match=r"events\.jsonl"):
        read_events(path)
