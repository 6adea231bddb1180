import tracemalloc
from itertools import islice

import pytest

from paxkv.workloads.drawing import Workload, WorkloadReport, make_sessions
from paxkv.workloads.traces.reading import TraceReport
from paxkv.workloads.workload_config import WorkloadConfig


def workload(num_requests=20, *, max_context=2048, vocab_size=1000, **settings):
    config = WorkloadConfig(num_requests=num_requests, **settings)
    return Workload(config, max_context=max_context, vocab_size=vocab_size)


CHAT = {"structure": "chat", "min_turns": 2, "max_turns": 4, "max_prompt_tokens": 512}
ALL = [
    {},
    {"lengths": "alpaca", "arrival": "gamma", "burstiness_cv": 2.0},
    CHAT | {"arrival": "poisson", "think_s": 3.0, "too_long": "clip"},
    {"structure": "agents", "max_turns": 3, "shared_tokens": 99, "too_long": "clip"},
    {"structure": "shared_prefix", "shared_tokens": 80, "too_long": "drop"},
    {"structure": "rag", "document_tokens": 64, "too_long": "clip"},
]


@pytest.mark.parametrize("settings", ALL)
def test_the_same_seed_draws_the_same_sessions(settings):
    drawn = workload(**settings)
    first = list(drawn)
    report = drawn.report
    assert list(drawn) == first and drawn.report == report
    assert list(workload(seed=1, **settings)) != first
    assert [session.arrival_s for session in first] == sorted(
        session.arrival_s for session in first
    )
    tokens = [token for s in first for turn in s.turns for token in turn.prompt_ids]
    assert all(1 <= token < 1000 for token in tokens)
    assert report.num_sessions == len(first)
    assert report.num_sessions + report.num_dropped == 20
    assert report.num_requests == sum(len(session.turns) for session in first)
    assert report.input_tokens == len(tokens)
    assert report.output_tokens == sum(t.max_tokens for s in first for t in s.turns)


@pytest.mark.parametrize("settings", ALL)
def test_a_longer_workload_begins_with_a_shorter_one(settings):
    longer = list(workload(40, **settings))
    shorter = list(workload(20, **settings))
    assert longer[: len(shorter)] == shorter


def test_another_rate_asks_the_same_questions():
    slow, fast = (list(workload(arrival="poisson", rate_per_s=rate)) for rate in (1.0, 4.0))
    assert [s.turns for s in slow] == [s.turns for s in fast]
    assert [s.arrival_s / 4 for s in slow] == pytest.approx([s.arrival_s for s in fast])


def test_a_large_workload_is_never_held_whole():
    sessions = iter(workload(10**9, lengths="fixed", input_tokens=1_000))
    next(sessions)
    tracemalloc.start()
    for _ in islice(sessions, 200):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20  # 200 prompts of 1,000 tokens are 1.6 MB of pointers alone


def test_unrelated_requests_share_no_block_and_related_ones_exactly_their_prefix():
    settings = {"structure": "shared_prefix", "shared_tokens": 80, "too_long": "drop"}
    prompts = [s.turns[0].prompt_ids for s in workload(200, num_prefixes=2, **settings)]
    prefixes = {prompt[:80] for prompt in prompts}
    assert len(prefixes) == 2
    assert len({prompt[:16] for prompt in prefixes}) == 2
    long_enough = [prompt for prompt in prompts if len(prompt) >= 96]
    assert len({prompt[80:96] for prompt in long_enough}) == len(long_enough) > 50


def test_samples_and_beams_are_asked_for():
    (session,) = workload(1, num_samples=4, use_beam_search=True)
    assert session.num_samples == 4 and session.use_beam_search


FIXED = {"lengths": "fixed", "input_tokens": 90, "output_tokens": 30}


def test_a_session_past_the_context_is_refused():
    with pytest.raises(ValueError) as error:
        list(workload(3, max_context=100, **FIXED))
    assert "session 0 of the workload needs a context of 120 tokens" in str(error.value)
    assert "max_context=100" in str(error.value)
    assert "--config.workload.too_long" in str(error.value)
    assert len(list(workload(3, max_context=120, **FIXED))) == 3


def test_a_session_past_the_context_is_cut():
    drawn = workload(3, max_context=100, too_long="clip", **FIXED)
    lengths = {(len(s.turns[0].prompt_ids), s.turns[0].max_tokens) for s in drawn}
    assert lengths == {(70, 30)}
    assert drawn.report == WorkloadReport(
        num_sessions=3, num_requests=3, input_tokens=210, output_tokens=90, num_clipped=3
    )


def test_a_session_past_the_context_is_left_out_and_counted():
    everything = workload(100, max_context=2048)
    fitting = [
        session
        for session in everything
        if len(session.turns[0].prompt_ids) + session.turns[0].max_tokens <= 300
    ]
    drawn = workload(100, max_context=300, too_long="drop")
    assert list(drawn) == fitting
    assert 0 < drawn.report.num_sessions == 100 - drawn.report.num_dropped < 100


def test_a_workload_of_which_nothing_fits_is_an_error():
    drawn = workload(3, max_context=50, too_long="drop", **FIXED)
    with pytest.raises(ValueError, match="none of the workload's 3 sessions fits"):
        list(drawn)


def test_losses_are_told_with_the_malformed_rows_by_line():
    malformed = tuple(f"line {number}: is no row" for number in range(2, 14))
    report = WorkloadReport(
        num_clipped=1_200,
        num_dropped=2,
        trace=TraceReport(num_rows=5, num_malformed=12, malformed=malformed),
    )
    cut, dropped, rows = report.notes
    assert cut == "1,200 sessions were cut to fit in the context."
    assert dropped == "2 sessions did not fit and were left out."
    assert rows.startswith("12 rows of the trace are malformed and were left out: line 2: ")
    assert rows.endswith("line 11: is no row; and 2 more.")
    assert report.losses == {"num_clipped": 1_200, "num_dropped": 2, "num_malformed": 12}
    assert WorkloadReport().notes == ()


def test_lengths_are_scaled_down_but_not_up():
    at_2048 = [len(s.turns[0].prompt_ids) for s in workload(60, too_long="scale")]
    drawn = workload(60, max_context=512, too_long="scale")
    assert [len(s.turns[0].prompt_ids) for s in drawn] == [
        max(1, length // 4) for length in at_2048
    ]
    assert drawn.report.num_clipped == 0
    larger = workload(60, max_context=8192, too_long="scale")
    assert [len(s.turns[0].prompt_ids) for s in larger] == at_2048


def test_what_scaling_leaves_too_long_is_cut():
    drawn = workload(2, max_context=50, too_long="scale", scale_from_tokens=100, **FIXED)
    lengths = {(len(s.turns[0].prompt_ids), s.turns[0].max_tokens) for s in drawn}
    assert lengths == {(35, 15)}  # 45 and 15 exceed the context by 10
    assert drawn.report.num_clipped == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_context": 1}, "max_context=1 holds no prompt and output; need ≥ 2"),
        ({"vocab_size": 2}, "vocab_size=2 cannot tell prompts apart; need ≥ 3"),
        (CHAT | {"max_context": 512}, "max_prompt_tokens=512 leaves no output in"),
    ],
)
def test_models_that_are_too_small_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        workload(**settings)


def test_make_sessions_draws_the_workload():
    config = WorkloadConfig(num_requests=3)
    sessions = make_sessions(config, max_context=2048, vocab_size=1000)
    assert list(sessions) == list(workload(3))


def traced(path, text, **settings):
    path.write_text(text)
    settings = {
        "structure": "trace",
        "arrival": "trace",
        "trace_path": str(path),
    } | settings
    return workload(settings.pop("num_requests", None), **settings)


HEADER = "arrival_s,input_len,output_len\n"


def test_a_trace_is_replayed_and_reported(tmp_path):
    text = HEADER + "2,5,3\n2.5,9,1\nx,1,1\n4,2000,60\n"
    drawn = traced(tmp_path / "t", text, max_malformed=None, too_long="clip")
    sessions = [(s.arrival_s, len(s.turns[0].prompt_ids)) for s in drawn]
    assert sessions == [(0.0, 5), (0.5, 9), (2.0, 1988)]
    assert drawn.report.num_sessions == 3 and drawn.report.num_clipped == 1
    assert drawn.report.trace is not None
    assert drawn.report.trace.num_rows == 3
    (malformed,) = drawn.report.trace.malformed
    assert malformed == "line 4: arrival_s='x' is no number of seconds"


def test_malformed_rows_are_an_error_unless_allowed(tmp_path):
    with pytest.raises(ValueError, match="more than 0 malformed rows: line 3: arrival_s="):
        list(traced(tmp_path / "t", HEADER + "0,1,1\nx,1,1\n"))


def test_a_trace_ends_with_its_file_or_after_the_requests_asked_for(tmp_path):
    text = HEADER + "0,1,1\n" * 5
    assert len(list(traced(tmp_path / "t", text))) == 5
    assert len(list(traced(tmp_path / "t", text, num_requests=3))) == 3
    assert len(list(traced(tmp_path / "t", text, num_requests=9))) == 5


def test_hashes_share_exactly_their_blocks(tmp_path):
    lines = [[1, 2, 3], [1, 2, 4], [5, 2, 3]]
    text = "".join(
        f'{{"timestamp": 0, "input_length": 1400, "output_length": 1, "hash_ids": {ids}}}\n'
        for ids in lines
    )
    first, second, third = (s.turns[0].prompt_ids for s in traced(tmp_path / "t", text))
    assert len(first) == 1400
    assert first[:1024] == second[:1024] and first[1024:1040] != second[1024:1040]
    assert first[:16] != third[:16] and first[512:] == third[512:]
    scaled = traced(
        tmp_path / "t", text, max_context=512, too_long="scale", scale_from_tokens=2048
    )
    first, second, third = (s.turns[0].prompt_ids for s in scaled)
    assert len(first) == 128 + 128 + 376 // 4
    assert first[:256] == second[:256] and first[256:272] != second[256:272]


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path):
    text = (
        '{"prompt": [5, 999], "output_tokens": 1}\n{"prompt": [1000], "output_tokens": 1}\n'
    )
    drawn = iter(traced(tmp_path / "t", text, arrival="at_once"))
    assert next(drawn).turns[0].prompt_ids == (5, 999)
    with pytest.raises(ValueError, match="session 1 of trace .* has token 1000, the voc"):
        next(drawn)


def test_texts_are_counted_by_the_tokenizer_that_is_given(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "one two three", "output_tokens": 2}\n')
    config = WorkloadConfig(num_requests=None, structure="trace", trace_path=str(path))
    for settings, length in (
        ({"count_tokens": lambda text: len(text.split())}, 3),
        ({}, 4),  # 13 bytes over 4
    ):
        (session,) = Workload(config, max_context=99, vocab_size=99, **settings)
        assert len(session.turns[0].prompt_ids) == length
