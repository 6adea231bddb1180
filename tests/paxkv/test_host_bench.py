"""Streams are what they claim, and replays do the work that they record."""

import json
import sys
from collections import Counter

import pytest

from paxkv.host_bench import GC_MODES, ManagerReplay, StepReplay, in_turns
from paxkv.host_peer import Peer, PeerReplay
from paxkv.host_stream import MOST_ADMITTED, Stream, record_lookups, record_serving

CONTEXT = 256
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def served() -> Stream:
    return record_serving(3, 6, 40, max_context=CONTEXT)


def test_a_stream_is_recorded_again_from_its_seed(served):
    assert record_serving(3, 6, 40, max_context=CONTEXT) == served
    assert record_serving(4, 6, 40, max_context=CONTEXT) != served


def test_requests_of_a_stream_end_with_their_last_output(served):
    left, num_finished = {}, 0
    for step in served.steps:
        left |= {index: len(served.outputs[index]) for index in step.admitted}
        assert step.num_running == len(left) == 6
        left = {index: count - 1 for index, count in left.items()}
        assert list(step.finished) == sorted(i for i, count in left.items() if not count)
        left = {index: count for index, count in left.items() if count}
        num_finished += len(step.finished)
    assert num_finished > 3
    totals = [len(p) + len(o) for p, o in zip(served.prompts, served.outputs, strict=True)]
    assert max(totals) <= CONTEXT


def test_prompts_of_a_stream_share_prefixes():
    stream = record_serving(0, 64, 5, max_context=CONTEXT)
    shared = Counter(prompt[:8] for prompt in stream.prompts)
    assert sum(count for count in shared.values() if count > 1) > len(stream.prompts) // 4


def test_requests_of_a_decode_stream_stay():
    stream = record_serving(
        0, MOST_ADMITTED + 1, 9, max_context=CONTEXT, requests_end=False
    )
    assert not any(step.finished for step in stream.steps)
    counted = stream.steps[stream.num_warm :]
    assert len(counted) == 9
    assert all(not s.admitted and s.num_running == MOST_ADMITTED + 1 for s in counted)
    assert all(len(step.admitted) <= MOST_ADMITTED for step in stream.steps)


def test_a_decode_stream_leaves_room_for_prompts():
    with pytest.raises(ValueError, match="more than half of max_context=256"):
        record_serving(0, 1, 200, max_context=CONTEXT, requests_end=False)


@pytest.mark.parametrize("repeated", [True, False])
def test_looked_up_prompts_are_cached_or_new(repeated):
    stream = record_lookups(0, 40, 5, repeated=repeated)
    before = set(stream.prompts[: stream.num_warm])
    counted = stream.prompts[stream.num_warm :]
    assert [prompt in before for prompt in counted] == [repeated] * 5
    assert {len(prompt) for prompt in stream.prompts} == {40}


def replays_of(stream: Stream) -> dict:
    sizes = dict(num_blocks=stream.needed_blocks(BLOCK_SIZE), block_size=BLOCK_SIZE)
    packed = []
    steps = StepReplay(stream, packed.append, clock="cpu", **sizes)
    return {"steps": steps, "manager": ManagerReplay(stream, **sizes)}


def test_replays_end_the_recorded_requests(served):
    done = []
    seconds = in_turns(served, replays_of(served), batch=7, progress=done.append)
    assert set(seconds["steps"]) == {"plan", "pack", "commit", "whole"}
    kinds = {"decode", "register", "make", "look_up", "admit", "allocate", "insert", "free"}
    assert set(seconds["manager"]) == kinds
    for kinds in seconds.values():
        assert {len(values) for values in kinds.values()} == {40}
    assert sum(done) == 2 * len(served.steps)


def test_replays_give_all_their_blocks_back():
    stream = record_lookups(0, 40, 5, repeated=False)
    replays = replays_of(stream)
    in_turns(stream, replays, batch=3)
    scheduler = replays["steps"].scheduler
    assert not scheduler.has_unfinished
    assert len(scheduler.running) == 0


def test_a_replay_that_does_other_work_is_refused(served):
    class Idle:
        def advance(self, num_steps):
            return {"whole": [0.0] * num_steps}, [[] for _ in range(num_steps)]

    with pytest.raises(ArithmeticError, match="idle: other requests ended"):
        in_turns(served, {"idle": Idle()}, batch=5)


PEER = """
import json, os, sys
assert "PYTHONPATH" in os.environ
print(json.dumps({"vllm": "9.9"}), flush=True)
names = set()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "open":
        steps = iter(asked["recording"]["steps"])
        answer = {}
    elif asked["op"] == "advance":
        done = [next(steps)["finished"] for _ in range(asked["count"])]
        answer = {"seconds": {"whole": [0.0] * len(done)}, "finished": done}
    else:
        answer = {}
    print(json.dumps(answer), flush=True)
"""


def test_a_peer_takes_turns_through_pipes(tmp_path, served):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "peer.py").write_text(PEER)
    peer = Peer(f"{sys.executable}:{tmp_path}", tmp_path / "peer.py")
    try:
        assert peer.version == "9.9"
        replay = PeerReplay(peer, served, "steps", num_blocks=9, gc=GC_MODES[0])
        seconds = in_turns(served, {"vllm": replay}, batch=11)
        assert len(seconds["vllm"]["whole"]) == 40
        replay.close()
    finally:
        peer.close()


def test_a_peer_that_ends_is_told(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "peer.py").write_text("")
    with pytest.raises(ChildProcessError, match="the peer ended"):
        Peer(f"{sys.executable}:{tmp_path}", tmp_path / "peer.py")


@pytest.mark.parametrize("place", ["python", "/nowhere:/nowhere", f"{sys.executable}:/"])
def test_a_peer_needs_an_interpreter_and_a_source(place, tmp_path):
    with pytest.raises(ValueError, match="must be PYTHON:SOURCE"):
        Peer(place, tmp_path / "peer.py")


def test_a_stream_is_json(served):
    told = json.loads(json.dumps(served.to_json()))
    assert told["steps"][0]["admitted"] == list(served.steps[0].admitted)
    assert told["prompts"][0] == list(served.prompts[0])
