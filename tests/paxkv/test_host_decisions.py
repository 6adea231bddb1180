"""Streams are decided step by step, by our scheduler and by a peer's."""

import json
import sys
from dataclasses import asdict

from paxkv.config import CacheConfig, SchedulerConfig
from paxkv.host_decisions import (
    Arrivals,
    Decision,
    decide,
    decide_by_peer,
    first_difference,
)
from paxkv.host_peer import Peer

STREAM = Arrivals(
    prompts=((1, 2, 3, 4, 5), (6, 7, 8), (9,) * 6),
    outputs=((11, 12, 13, 14), (21, 22), (31,)),
    arriving=((0, 1), (), (), (2,)),
    max_context=16,
)
CACHE = CacheConfig(block_size=2)
DECISIONS = [
    Decision(num_tokens={0: 5, 1: 3}, preempted=(), finished=(), num_free=1),
    Decision(num_tokens={0: 1, 1: 1}, preempted=(), finished=(1,), num_free=3),
    Decision(num_tokens={0: 1}, preempted=(), finished=(), num_free=2),
    Decision(num_tokens={0: 1}, preempted=(), finished=(0,), num_free=6),
    Decision(num_tokens={2: 6}, preempted=(), finished=(2,), num_free=6),
]


def test_decisions_are_those_of_each_step():
    """A pool of 6 blocks of 2: the third waits until the first has ended."""
    config = SchedulerConfig(watermark=0.0, max_num_batched_tokens=16)
    assert decide(STREAM, CACHE, config, 7) == DECISIONS


def test_a_preemption_is_told_in_its_step():
    config = SchedulerConfig(watermark=0.0, max_num_batched_tokens=16)
    decisions = decide(STREAM, CACHE, config, 6)  # 5 blocks: both fit, and none more
    assert decisions[0].num_tokens == {0: 5, 1: 3}
    stream = Arrivals(
        prompts=((1, 2, 3, 4), (6, 7, 8)),
        outputs=((11, 12, 13), (21, 22)),
        arriving=((0, 1),),
        max_context=16,
    )
    second = decide(stream, CACHE, config, 5)[1]
    assert (second.num_tokens, second.preempted) == ({0: 1}, (1,))


def test_the_first_difference_is_told():
    assert first_difference(DECISIONS, DECISIONS) is None
    assert first_difference(DECISIONS, DECISIONS[:-1]) == "5 steps of ours, 4 of theirs"
    other = [DECISIONS[0], DECISIONS[2], *DECISIONS[2:]]
    assert str(first_difference(DECISIONS, other)).startswith("step 1: ours Decision(")


PEER = """
import json, sys
print(json.dumps({"vllm": "9.9"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    assert asked["op"] == "decide" and asked["watermark"] == 0.5
    assert asked["stream"]["prompts"][1] == [6, 7, 8]
    print(json.dumps({"decisions": DECISIONS}), flush=True)
"""


def test_a_peer_decides_through_pipes(tmp_path):
    (tmp_path / "vllm").mkdir()
    told = json.dumps([asdict(decision) for decision in DECISIONS])
    (tmp_path / "peer.py").write_text(f"DECISIONS = {told}\n{PEER}")
    peer = Peer(f"{sys.executable}:{tmp_path}", tmp_path / "peer.py")
    try:
        assert decide_by_peer(peer, STREAM, 7, watermark=0.5) == DECISIONS
    finally:
        peer.close()
