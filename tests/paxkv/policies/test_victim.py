import pytest

from paxkv.policies.victim import VICTIM_POLICIES, choose_victim, fewest_outputs, newest
from tests.fakes import make_request


def make_running(*num_outputs, prompts=(5, 5, 5, 5), preemptions=(0, 0, 0, 0)):
    running = []
    for i, count in enumerate(num_outputs):
        request = make_request(prompts[i], request_id=i)
        request.output_ids[:] = [1] * count
        request.num_preemptions = preemptions[i]
        running.append(request)
    return running


def test_newest_is_the_last_that_came():
    running = make_running(0, 5, 5)
    assert newest(running) is running[2]


def test_fewest_outputs_then_longest_prompt_then_newest():
    running = make_running(3, 1, 1, 2)
    assert fewest_outputs(running) is running[2]
    running = make_running(3, 1, 1, 2, prompts=(5, 9, 5, 5))
    assert fewest_outputs(running) is running[1]


@pytest.mark.parametrize("policy", VICTIM_POLICIES.values())
def test_the_oldest_is_never_chosen(policy):
    running = make_running(0, 5, 9)
    for needy in range(3):
        assert choose_victim(policy, running, needy, 8) in running[1:]


def test_exempt_requests_give_way_to_the_oldest_only():
    running = make_running(0, 5, 9, preemptions=(0, 2, 2))
    assert choose_victim(newest, running, 1, 2) is None
    assert choose_victim(newest, running, 0, 2) is running[2]
    running[1].num_preemptions = 1
    assert choose_victim(newest, running, 0, 2) is running[1]


def test_the_oldest_alone_always_fits():
    with pytest.raises(AssertionError, match="cannot run alone"):
        choose_victim(newest, make_running(4), 0, 8)
