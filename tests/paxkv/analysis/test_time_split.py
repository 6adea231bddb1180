"""Every second of a request has one cause, on steps made by hand."""

import numpy as np
import pytest

from paxkv.analysis.time_split import PrefillSlice, StepView, TimeSplit
from paxkv.simulation.work import StepSeconds
from paxkv.types import FinishReason, RequestMetrics


def view(
    start_s: float,
    end_s: float,
    rows: list[int],
    started: tuple = (),
    prefills: tuple[PrefillSlice, ...] = (),
) -> StepView:
    return StepView(
        start_s=start_s,
        end_s=end_s,
        rows=np.asarray(rows, np.int32),
        started=started,
        prefills=prefills,
    )


def prefill(index: int, num_tokens: int, *, again: bool = False, first: bool = True):
    return PrefillSlice(
        index=index, num_tokens=num_tokens, is_recompute=again, is_first_token=first
    )


def ended(request_id: int, arrival_s: float, finish_s: float, sample_index: int = 0):
    return RequestMetrics(
        request_id=request_id,
        arrival_s=arrival_s,
        first_scheduled_s=arrival_s,
        token_times_s=(finish_s,),
        finish_s=finish_s,
        num_prompt_tokens=1,
        num_output_tokens=1,
        num_preemptions=0,
        num_recomputed_tokens=0,
        reason=FinishReason.LENGTH,
        sample_index=sample_index,
    )


def test_queueing_own_prefill_and_the_prompts_of_others():
    split = TimeSplit(num_rows=4)
    split.arrived(7, 0.0)
    split.arrived(8, 1.0)
    # 7 waits two seconds, then prefills alone for three
    seconds = StepSeconds(prefill_s=3.0)
    split.stepped(view(2.0, 5.0, [0], ((0, (7, 0)),), (prefill(0, 10),)), seconds)
    # 7 decodes while 8 prefills 30 tokens: 2 s of weights, 6 s of prompt, 1 s of host
    seconds = StepSeconds(decode_s=2.0, prefill_s=6.0, host_s=1.0)
    split.stepped(view(5.0, 14.0, [0, 1], ((1, (8, 0)),), (prefill(1, 30),)), seconds)
    first, after = split.ended(ended(7, 0.0, 14.0))
    assert first == {"queueing": 2.0, "own_prefill": 3.0}
    assert after == {"prefill_interference": 6.0, "decode": 2.0, "host": 1.0}
    first, after = split.ended(ended(8, 1.0, 14.0))
    assert first == {"queueing": 4.0, "own_prefill": 6.0, "decode": 2.0, "host": 1.0}
    assert after == {}


def test_a_prompt_shares_the_prefill_with_others_by_tokens():
    split = TimeSplit(num_rows=2)
    split.arrived(0, 0.0)
    split.arrived(1, 0.0)
    started = ((0, (0, 0)), (1, (1, 0)))
    both = (prefill(0, 10), prefill(1, 30))
    split.stepped(view(0.0, 8.0, [0, 1], started, both), StepSeconds(prefill_s=8.0))
    assert split.ended(ended(0, 0.0, 8.0))[0] == {
        "own_prefill": 2.0,
        "prefill_interference": 6.0,
    }
    assert split.ended(ended(1, 0.0, 8.0))[0] == {
        "own_prefill": 6.0,
        "prefill_interference": 2.0,
    }


def test_preemption_costs_the_wait_and_the_work_of_all():
    split = TimeSplit(num_rows=2)
    split.arrived(0, 0.0)
    split.arrived(1, 0.0)
    started = ((0, (0, 0)), (1, (1, 0)))
    both = (prefill(0, 5), prefill(1, 5))
    split.stepped(view(0.0, 2.0, [0, 1], started, both), StepSeconds(prefill_s=2.0))
    split.stepped(view(2.0, 3.0, [0], ()), StepSeconds(decode_s=1.0))  # 1 was preempted
    split.stepped(view(3.0, 4.0, [0], ()), StepSeconds(decode_s=1.0))
    again = (prefill(1, 6, again=True, first=False),)
    split.stepped(
        view(4.0, 7.0, [0, 1], ((1, (1, 0)),), again),
        StepSeconds(decode_s=1.0, prefill_s=2.0),
    )
    first, after = split.ended(ended(1, 0.0, 7.0))
    assert first == {"own_prefill": 1.0, "prefill_interference": 1.0}
    assert after == {"recompute": 4.0, "decode": 1.0}  # waited 2 s, computed 2 s
    assert split.ended(ended(0, 0.0, 7.0))[1] == {"decode": 3.0, "recompute": 2.0}


def test_another_owner_of_a_row_leaves_the_first_its_time():
    split = TimeSplit(num_rows=1)
    split.arrived(0, 0.0)
    split.stepped(
        view(0.0, 1.0, [0], ((0, (0, 0)),), (prefill(0, 4),)), StepSeconds(prefill_s=1.0)
    )
    split.arrived(1, 1.0)
    split.stepped(
        view(1.0, 3.0, [0], ((0, (1, 0)),), (prefill(0, 4),)), StepSeconds(prefill_s=2.0)
    )
    assert split.ended(ended(1, 1.0, 3.0))[0] == {"own_prefill": 2.0}
    split.stepped(
        view(3.0, 4.0, [0], ((0, (0, 0)),), (prefill(0, 4, again=True, first=False),)),
        StepSeconds(prefill_s=1.0),
    )
    first, after = split.ended(ended(0, 0.0, 4.0))
    assert (first, after) == ({"own_prefill": 1.0}, {"recompute": 3.0})


def test_time_without_a_slice_is_queueing_and_time_between_steps_is_the_hosts():
    split = TimeSplit(num_rows=2)
    split.arrived(0, 0.0)
    split.arrived(1, 0.0)
    started = ((0, (0, 0)), (1, (1, 0)))
    both = (prefill(0, 5), prefill(1, 5))
    split.stepped(view(0.0, 2.0, [0, 1], started, both), StepSeconds(prefill_s=2.0))
    split.stepped(view(2.5, 3.5, [0]), StepSeconds(decode_s=0.75))  # 1 stands still
    split.stepped(view(3.5, 4.5, [0, 1]), StepSeconds(decode_s=1.0))
    assert split.ended(ended(0, 0.0, 4.5))[1] == {"host": 0.75, "decode": 1.75}
    assert split.ended(ended(1, 0.0, 4.5))[1] == {"queueing": 1.5, "decode": 1.0}


def test_a_forked_sample_has_what_the_first_had_and_a_first_token_of_its_own():
    split = TimeSplit(num_rows=2)
    split.arrived(3, 1.0, num_sequences=2)
    split.stepped(
        view(2.0, 4.0, [0], ((0, (3, 0)),), (prefill(0, 4),)), StepSeconds(prefill_s=2.0)
    )
    split.stepped(
        view(4.0, 5.5, [0, 1], ((1, (3, 1)),), (prefill(1, 1),)),
        StepSeconds(decode_s=1.0, prefill_s=0.5),
    )
    first, after = split.ended(ended(3, 1.0, 5.5))
    assert first == {"queueing": 1.0, "own_prefill": 2.0}
    assert after == {"prefill_interference": 0.5, "decode": 1.0}
    first, after = split.ended(ended(3, 1.0, 5.5, sample_index=1))
    assert first == {"queueing": 1.0, "own_prefill": 2.5, "decode": 1.0}
    assert after == {}


def test_a_request_that_never_ran_has_queued():
    split = TimeSplit(num_rows=1)
    split.arrived(0, 1.0)
    metrics = ended(0, 1.0, 4.0)
    metrics = RequestMetrics(
        **{
            name: getattr(metrics, name)
            for name in metrics.__dataclass_fields__
            if name != "first_scheduled_s"
        },
        first_scheduled_s=None,
    )
    assert split.ended(metrics) == ({"queueing": 3.0}, {})


def test_causes_sum_to_the_latency_whatever_happens():
    rng = np.random.default_rng(0)
    split = TimeSplit(num_rows=3)
    owner: dict[int, int] = {}
    arrival_s, seen, now_s, next_id = {}, set(), 0.0, 0
    totals = 0
    for _ in range(400):
        started = []
        for row in range(3):
            if rng.random() < 0.2:
                if row in owner and rng.random() < 0.5:  # ends
                    request = owner.pop(row)
                    metrics = ended(request, arrival_s[request], now_s)
                    causes = split.ended(metrics)
                    spent = sum(causes[0].values()) + sum(causes[1].values())
                    assert spent == pytest.approx(now_s - arrival_s[request])
                    totals += 1
                arrival_s[next_id] = now_s
                split.arrived(next_id, now_s)
                owner[row] = next_id
                started.append((row, (next_id, 0)))
                next_id += 1
        rows = sorted(owner)
        if not rows:
            continue
        fresh = {row for row, _ in started}
        slices = tuple(
            prefill(index, 3, first=True) for index, row in enumerate(rows) if row in fresh
        )
        parts = rng.random(6)
        seconds = StepSeconds(
            **dict(zip(StepSeconds.__dataclass_fields__, parts, strict=True))
        )
        start_s = now_s + rng.random()
        now_s = start_s + seconds.total_s
        split.stepped(view(start_s, now_s, rows, tuple(started), slices), seconds)
        seen |= set(rows)
    assert totals > 50
