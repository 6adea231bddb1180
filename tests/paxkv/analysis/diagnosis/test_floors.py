"""What requests need alone, by hand."""

from dataclasses import dataclass

import pytest

from paxkv.analysis.diagnosis.floors import Floor, floor_of_cost_model, floor_of_records
from paxkv.simulation.work import StepSeconds, StepWork
from tests.paxkv.analysis.diagnosis.synthetic import alike, request


@dataclass(frozen=True)
class ByContext:
    """A second per step, and a thousandth per position that is read."""

    def seconds(self, work: StepWork) -> StepSeconds:
        assert (work.num_seqs, work.num_decode_tokens) == (1, 1)
        assert work.num_prefill_tokens == sum(work.prefill_pairs) == 0
        return StepSeconds(decode_s=1.0 + 1e-3 * sum(work.decode_read_tokens), host_s=9.0)


def test_the_cost_models_batch_of_one_reads_whole_blocks_and_windows():
    made = floor_of_cost_model(
        ByContext(), block_size=16, windows=(None, 40), budget_tokens=512
    )
    assert made.decode_alone_s(20) == pytest.approx(1.0 + 1e-3 * (32 + 32))
    assert made.decode_alone_s(100) == pytest.approx(1.0 + 1e-3 * (112 + 48))


def test_a_first_token_needs_its_prompt_its_steps_and_the_one_under_way():
    floor = Floor(decode_alone_s=lambda n: 0.1, budget_tokens=50, source="")
    crowded = {"queueing": 2.0, "own_prefill": 0.7, "decode": 3.0, "host": 1.0}
    record = request(0, crowded, {}, num_prompt_tokens=130, num_cached_tokens=10)
    expected = {"own_prefill": 0.7, "decode": pytest.approx(0.3), "queueing": 0.1}
    assert floor.of_first_token(record) == expected  # 120 tokens take three steps
    quick = request(0, {"own_prefill": 0.7, "decode": 0.2}, {}, num_prompt_tokens=130)
    assert floor.of_first_token(quick) == {
        "own_prefill": 0.7,
        "decode": 0.2,
        "queueing": 0.0,
    }


def test_a_next_token_needs_one_step_in_the_middle_of_its_output():
    floor = Floor(decode_alone_s=lambda n: n * 1e-3, budget_tokens=50, source="")
    record = request(0, {}, {"decode": 9.0, "swap": 1.0})
    assert floor.of_next_token(record) == {"decode": pytest.approx(0.105)}  # 100 + 11 // 2
    quick = request(0, {}, {"decode": 0.2})
    assert floor.of_next_token(quick) == {"decode": pytest.approx(0.02)}


def test_without_a_cost_model_the_fastest_request_is_the_floor():
    records = [
        *alike(3, {}, {"decode": 5.0}),
        request(9, {}, {"decode": 0.4, "swap": 7.0}),
        request(10, {}, {}, num_output_tokens=1),
    ]
    floor = floor_of_records(records, budget_tokens=64)
    assert floor.decode_alone_s(12345) == pytest.approx(0.04)
    assert floor_of_records([], budget_tokens=64).decode_alone_s(1) == 0.0
