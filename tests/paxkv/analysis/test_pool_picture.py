"""Every shown block and step has the colour of its state or owner."""

import numpy as np
import pytest

from paxkv.analysis import pool_picture
from paxkv.analysis.event_replay import PoolHistory, replay
from paxkv.analysis.pool_picture import colour_indices, draw_pool, shown_steps
from paxkv.events import Event, EventKind
from tests.event_streams import random_events, sample_events


def test_states_written_out():
    history = replay(sample_events(), (5,))
    indices = colour_indices(history.groups[0], shown_steps(history), "state")
    assert indices.tolist() == [[0, 2, 3, 1, 2], [0, 2, 2, 0, 0], [0, 0, 2, 0, 0], [0] * 5]


def test_owners_written_out():
    history = replay(sample_events(), (5,))
    indices = colour_indices(history.groups[0], shown_steps(history), "owner")
    seven, eight = 3 + 7 % 6, 3 + 8 % 6
    assert indices.tolist() == [
        [0, seven, 2, 1, eight],
        [0, seven, seven, 0, 0],
        [0, 0, eight, 0, 0],
        [0] * 5,
    ]


def test_samples_of_one_request_share_its_colour():
    events = [
        Event(kind=kind, step=1, now_s=0.0, blocks=(1,), request_id=1, sample_index=sample)
        for kind, sample in ((EventKind.ALLOCATE, 0), (EventKind.SHARE, 1))
    ]
    history = replay(events, (2,))
    assert colour_indices(history.groups[0], [1], "owner").tolist() == [[4]]
    assert colour_indices(history.groups[0], [1], "state").tolist() == [[3]]


def long_history(num_steps: int) -> PoolHistory:
    events, _ = random_events(5, num_steps=num_steps, num_blocks=(40,))
    return replay(events, (40,))


def test_long_runs_show_some_steps_as_they_are():
    history = long_history(4500)
    steps = shown_steps(history)
    assert len(steps) == pool_picture.MAX_COLUMNS
    assert (steps[0], steps[-1]) == (1, 4500)
    whole = colour_indices(history.groups[0], range(1, 4501), "state")
    some = colour_indices(history.groups[0], steps, "state", stride=3)
    np.testing.assert_array_equal(some, whole[::3, np.asarray(steps) - 1])


@pytest.mark.parametrize("colour", ["state", "owner"])
def test_files_are_png(tmp_path, colour):
    path = tmp_path / "pool.png"
    events, _ = random_events(2)
    draw_pool(replay(events, (17, 9)), path, colour=colour)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_many_steps_and_blocks_and_none_at_all_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_picture, "MAX_BLOCK_ROWS", 10)
    for name, history in (("many", long_history(2100)), ("none", replay([], (5,)))):
        draw_pool(history, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_unknown_colourings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="colour='heat'"):
        draw_pool(replay([], (5,)), tmp_path / "pool.png", colour="heat")
