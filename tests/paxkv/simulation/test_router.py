"""Who gets a request, on replicas whose load and caches are set by hand."""

import pytest

from paxkv.engine import Engine
from paxkv.replay import Replica
from paxkv.request_options import RequestOptions
from paxkv.sampling_params import SamplingParams
from paxkv.session_feed import Arrival
from paxkv.simulation.router import ROUTING_POLICIES, num_unfinished
from paxkv.simulation.virtual_clock import VirtualClock
from tests.fakes import FakeExecutor, make_scheduler
from tests.trials import make_trial, run_trial

PROMPT = tuple(range(1, 25))


def make_replica() -> Replica:
    scheduler = make_scheduler(
        prefix_caching=True, num_blocks=65, max_context=64, max_num_seqs=4
    )
    clock = VirtualClock()
    executor = FakeExecutor(65, scheduler.allocator.block_size)
    return Replica(engine=Engine(scheduler, executor, clock), clock=clock)


def serve(replica: Replica, prompt_ids: tuple[int, ...]) -> None:
    replica.engine.add(prompt_ids, SamplingParams(max_tokens=2, temperature=0.0))
    while replica.engine.has_unfinished:
        replica.engine.step()


def load(replica: Replica, count: int) -> None:
    for _ in range(count):
        replica.engine.add((9, 9, 9), SamplingParams(max_tokens=2, temperature=0.0))


def arrival(prompt_ids: tuple[int, ...] = PROMPT) -> Arrival:
    return Arrival(
        session=0,
        turn=0,
        arrival_s=0.0,
        prompt_ids=prompt_ids,
        sampling=SamplingParams(max_tokens=2, temperature=0.0),
        options=RequestOptions(),
        is_last=True,
    )


def test_round_robin_counts_on():
    route, replicas = ROUTING_POLICIES["round_robin"](), [make_replica() for _ in range(3)]
    assert [route(arrival(), replicas) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_loaded_takes_who_has_fewest():
    route, replicas = ROUTING_POLICIES["least_loaded"](), [make_replica() for _ in range(3)]
    load(replicas[0], 2)
    load(replicas[1], 1)
    load(replicas[2], 1)
    assert [num_unfinished(replica) for replica in replicas] == [2, 1, 1]
    assert route(arrival(), replicas) == 1


def test_prefix_aware_goes_where_the_prompt_is():
    route, replicas = ROUTING_POLICIES["prefix_aware"](), [make_replica() for _ in range(3)]
    serve(replicas[2], PROMPT)
    load(replicas[2], 3)
    assert route(arrival(), replicas) == 2
    assert route(arrival((*PROMPT[:4], *range(100, 140))), replicas) == 0  # little of it
    assert route(arrival(tuple(range(100, 130))), replicas) == 0  # nothing


def test_prefix_aware_leaves_a_replica_that_has_too_much_to_do():
    route, replicas = ROUTING_POLICIES["prefix_aware"](), [make_replica() for _ in range(2)]
    serve(replicas[1], PROMPT)
    load(replicas[1], 33)
    assert route(arrival(), replicas) == 0


@pytest.mark.parametrize("policy", ROUTING_POLICIES)
def test_replicas_serve_everything_between_them(policy):
    trial = make_trial(
        cache__num_blocks=100,
        cache__prefix_caching=True,
        engine__max_context=512,
        workload__num_requests=12,
        workload__structure="chat",
        workload__lengths="fixed",
        workload__input_tokens=24,
        workload__output_tokens=8,
        workload__max_turns=3,
        workload__rate_per_s=20.0,
        workload__too_long="clip",
        router__num_replicas=3,
        router__policy=policy,
    )
    outcome, records, _ = run_trial(trial)
    assert len(records) == outcome.metrics["num_finished"] >= 12
    assert {record.replica for record in records} == {0, 1, 2}
