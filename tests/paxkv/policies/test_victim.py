import pytest

from paxkv.policies.victim import (
    VICTIM_POLICIES,
    BlockOwners,
    Candidate,
    choose_victim,
    fewest_blocks,
    fewest_outputs,
    least_progress_lost,
    lowest_priority,
    most_blocks,
    newest,
)
from paxkv.request_options import RequestOptions
from paxkv.sequence_tables import SequenceTables
from tests.fakes import make_request

ROWS = 4


class Owners:
    """Rows alone own as many blocks as told, whoever gives way with them."""

    def __init__(self, freed):
        self.freed = freed

    def num_freed_by(self, rows):
        return sum(self.freed[row] for row in rows)


def make_running(
    *num_outputs,
    prompts=(5,) * ROWS,
    preemptions=(0,) * ROWS,
    priorities=(0,) * ROWS,
    blocks=(1,) * ROWS,
    freed=(1,) * ROWS,
    computed=(5,) * ROWS,
):
    """One candidate per request, oldest first; request i is in row i."""
    tables = SequenceTables(ROWS, 64, (16,))
    running = []
    for i, count in enumerate(num_outputs):
        request = make_request(
            prompts[i], request_id=i, options=RequestOptions(priority=priorities[i])
        )
        request.output_ids[:] = [1] * count
        request.num_preemptions = preemptions[i]
        row = tables.acquire()
        tables.append(0, row, list(range(1, blocks[i] + 1)))
        tables.num_computed[row] = computed[i]
        running.append(Candidate([request], [row], Owners(freed), tables))
    return running


def test_newest_is_the_last_that_came():
    running = make_running(0, 5, 5)
    assert newest(running) is running[2]


def test_fewest_outputs_then_longest_prompt_then_newest():
    running = make_running(3, 1, 1, 2)
    assert fewest_outputs(running) is running[2]
    running = make_running(3, 1, 1, 2, prompts=(5, 9, 5, 5))
    assert fewest_outputs(running) is running[1]


def test_lowest_priority_is_the_largest_number_then_the_newest():
    running = make_running(1, 1, 1, 1, priorities=(0, 7, 7, -3))
    assert lowest_priority(running) is running[2]


def test_fewest_blocks_counts_what_the_tables_hold_then_the_newest():
    running = make_running(1, 1, 1, 1, blocks=(3, 2, 2, 4), freed=(9, 9, 1, 1))
    assert fewest_blocks(running) is running[2]


def test_most_blocks_counts_only_what_nobody_shares_then_the_newest():
    running = make_running(1, 1, 1, 1, blocks=(9, 2, 3, 3), freed=(0, 2, 2, 1))
    assert most_blocks(running) is running[2]


def test_least_progress_is_lost_per_freed_block_then_by_the_newest():
    running = make_running(1, 1, 1, 1, computed=(8, 40, 4, 20), freed=(1, 10, 1, 5))
    assert least_progress_lost(running) is running[3]
    running = make_running(1, 1, computed=(3, 4), freed=(0, 2))  # 0 frees nothing
    assert least_progress_lost(running) is running[1]


def test_a_candidate_counts_all_sequences_of_its_request():
    tables = SequenceTables(ROWS, 64, (16, 16))
    requests = [make_request(5, request_id=3) for _ in range(2)]
    rows = [tables.acquire() for _ in requests]
    for count, (request, row) in enumerate(zip(requests, rows, strict=True), start=1):
        request.output_ids[:] = [1] * count
        request.num_preemptions = count
        tables.num_computed[row] = 10 * count
        for group in range(2):
            tables.append(group, row, [1] * count)
    owners = Owners((4, 5))
    assert isinstance(owners, BlockOwners)
    candidate = Candidate(requests, rows, owners, tables)
    assert candidate.num_outputs == 1 + 2
    assert candidate.num_preemptions == 2
    assert candidate.num_computed_tokens == 10 + 20
    assert candidate.num_blocks == 2 * (1 + 2)  # in both groups
    assert candidate.num_freed_blocks == 4 + 5


@pytest.mark.parametrize("policy", VICTIM_POLICIES.values())
def test_the_oldest_is_never_chosen(policy):
    running = make_running(0, 5, 9)
    for needy in range(3):
        assert choose_victim(policy, running, needy, 8) in running[1:]


def test_exempt_requests_give_way_to_the_oldest_only():
    running = make_running(0, 5, 9, preemptions=(0, 2, 2))
    assert choose_victim(newest, running, 1, 2) is None
    assert choose_victim(newest, running, 0, 2) is running[2]
    running[1].requests[0].num_preemptions = 1
    assert choose_victim(newest, running, 0, 2) is running[1]


def test_the_oldest_alone_has_nobody_to_ask():
    assert choose_victim(newest, make_running(4), 0, 8) is None


def test_who_would_free_nothing_is_asked_last():
    running = make_running(1, 1, 1, 1, freed=(1, 2, 0, 0))
    assert choose_victim(newest, running, 0, 8) is running[1]
    nothing = make_running(1, 1, 1, freed=(0, 0, 0))
    assert choose_victim(newest, nothing, 0, 8) is nothing[1]  # no worse than the others


def test_the_needy_may_be_its_own_victim():
    running = make_running(1, 1, 1)
    assert choose_victim(newest, running, 2, 8) is running[2]
