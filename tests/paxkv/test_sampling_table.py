"""The host's table of sampling settings: what a step gets of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxkv.device_executor import empty_plan
from paxkv.sampling import SampleOutput, SamplingFeatures, sample
from paxkv.sampling_params import SamplingParams
from paxkv.sampling_table import SamplingTable, seed_words
from paxkv.sequence_tables import SequenceTables
from paxkv.types import Plan, RowStart

V, EOS, MAX_ROWS, MAX_CONTEXT, PROMPT = 50, 49, 6, 200, 4


def table_of(*settings: SamplingParams) -> SamplingTable:
    """Row i holds settings[i], of request 100 + i, with a prompt of PROMPT tokens."""
    table = SamplingTable(MAX_ROWS, V, 7, (EOS,))
    for row, sampling in enumerate(settings):
        start = RowStart(
            row=row,
            request_id=100 + row,
            num_prompt_tokens=PROMPT,
            sampling=sampling,
            num_top=sampling.logprobs,
        )
        table.start(start)
    return table


def plan_of(rows, starts, lengths, samples=None) -> Plan:
    tables = SequenceTables(MAX_ROWS, MAX_CONTEXT, (1,))
    tables.tokens[:] = np.arange(tables.tokens.shape[1]) % V
    rows, starts, lengths = (np.array(x, np.int32) for x in (rows, starts, lengths))
    samples = np.ones(len(rows), bool) if samples is None else np.array(samples)
    return replace(
        empty_plan(tables), rows=rows, starts=starts, lengths=lengths, samples=samples
    )


GREEDY = SamplingParams(temperature=0)


def test_a_plain_greedy_step_pays_for_nothing():
    inputs, features = table_of(GREEDY, GREEDY).pack(plan_of([1, 0], [4, 8], [1, 1]), 8)
    assert features == SamplingFeatures()
    for name in ("bias_ids", "bias_values", "banned_ids", "history"):
        assert getattr(inputs, name).shape == (8, 0)
    assert inputs.positions.tolist() == [5, 9, 0, 0, 0, 0, 0, 0]


def test_rows_go_to_their_slices():
    table = table_of(
        SamplingParams(temperature=0.5, top_k=3, seed=11),
        GREEDY,
        SamplingParams(temperature=2.0, top_p=0.5, min_p=0.25, seed=2**33 + 5),
    )
    inputs, features = table.pack(plan_of([2, 1, 0], [4, 5, 6], [1, 1, 1]), 4)
    assert inputs.temperature.tolist() == [2.0, 0, 0.5, 0]
    assert inputs.top_k.tolist() == [V, V, 3, V]
    assert inputs.top_p.tolist() == [0.5, 1, 1, 1]
    assert inputs.min_p.tolist() == [0.25, 0, 0, 0]
    assert inputs.seeds.tolist()[0] == [2, 5] and inputs.seeds.tolist()[2] == [0, 11]
    assert features == SamplingFeatures(random=True, truncation=True)


def test_slices_that_do_not_sample_ask_for_nothing():
    table = table_of(SamplingParams(temperature=1.0, top_k=2, logprobs=3), GREEDY)
    plan = plan_of([0, 1], [0, 4], [2, 1], samples=[False, True])
    inputs, features = table.pack(plan, 2)
    assert features == SamplingFeatures()
    assert inputs.temperature.tolist() == [0, 0]


def test_truncation_of_greedy_rows_is_ignored():
    table = table_of(SamplingParams(temperature=1e-6, top_k=2, top_p=0.5, min_p=0.5))
    _, features = table.pack(plan_of([0], [4], [1]), 1)
    assert features == SamplingFeatures()


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_tokens_are_banned_until_min_tokens(ignore_eos):
    settings = SamplingParams(
        temperature=0,
        min_tokens=2,
        max_tokens=9,
        stop_token_ids=[3],
        ignore_eos=ignore_eos,
    )
    table = table_of(settings)
    for num_known, banned in ((4, True), (5, True), (6, False)):
        inputs, features = table.pack(plan_of([0], [num_known - 1], [1]), 2)
        assert features.bias == banned
        expected = [3, EOS, *[V] * 6] if banned else []
        assert inputs.banned_ids[0].tolist() == expected
        assert (inputs.banned_ids[1] == V).all()


def test_bias_lists_are_padded_to_a_bucket():
    table = table_of(
        SamplingParams(temperature=0, logit_bias={5: 1.5, 2: -1.0}),
        SamplingParams(temperature=0, logit_bias=dict.fromkeys(range(9), 1.0)),
    )
    inputs, features = table.pack(plan_of([0], [4], [1]), 1)
    assert features == SamplingFeatures(bias=True)
    assert inputs.bias_ids.tolist() == [[2, 5, V, V, V, V, V, V]]
    assert inputs.bias_values.tolist() == [[-1.0, 1.5, 0, 0, 0, 0, 0, 0]]
    inputs, _ = table.pack(plan_of([1, 0], [4, 4], [1, 1]), 2)
    assert inputs.bias_ids.shape == (2, 64)


def test_history_is_that_of_rows_with_penalties():
    table = table_of(SamplingParams(temperature=0, presence_penalty=1.0), GREEDY)
    inputs, features = table.pack(plan_of([1, 0], [7, 3], [1, 3]), 3)
    assert features == SamplingFeatures(penalties=True)
    assert inputs.history.tolist() == [[V] * 8, [0, 1, 2, 3, 4, 5, V, V], [V] * 8]
    assert inputs.num_prompt.tolist() == [PROMPT, PROMPT, 0]
    inputs, _ = table.pack(plan_of([0], [MAX_CONTEXT - 2], [1]), 1)
    assert inputs.history.shape == (1, MAX_CONTEXT + 1)  # not the next bucket, 512


def test_a_row_forgets_its_former_request():
    table = table_of(
        SamplingParams(
            temperature=1.0,
            top_k=3,
            repetition_penalty=1.2,
            logit_bias={1: 1.0},
            min_tokens=9,
            logprobs=2,
            prompt_logprobs=2,
        )
    )
    start = RowStart(row=0, request_id=1, num_prompt_tokens=PROMPT, sampling=GREEDY)
    table.start(start)
    _, features = table.pack(plan_of([0], [0], [4]), 1)
    assert features == SamplingFeatures()
    assert table.prompt_logprobs(plan_of([0], [0], [4])) is None


@pytest.mark.parametrize(("asked", "width"), [(None, None), (0, 0), (1, 5), (6, 20)])
def test_logprob_widths_are_few(asked, width):
    table = table_of(SamplingParams(temperature=0, logprobs=asked, prompt_logprobs=asked))
    plan = plan_of([0], [0], [4])
    assert table.pack(plan, 1)[1].logprobs == width
    assert table.prompt_logprobs(plan) == width
    decode = plan_of([0], [4], [1])
    assert table.prompt_logprobs(decode) is None


def output_of(count: int) -> SampleOutput:
    return SampleOutput(
        tokens=jnp.arange(count),
        logprobs=-jnp.arange(count, dtype=jnp.float32),
        ranks=jnp.ones(count, jnp.int32),
        top_ids=jnp.tile(jnp.arange(5), (count, 1)),
        top_logprobs=jnp.zeros((count, 5)),
    )


def test_reading_logprobs_back():
    table = table_of(
        SamplingParams(temperature=0, logprobs=1, prompt_logprobs=2),
        GREEDY,
    )
    plan = plan_of([1, 0], [0, 1], [2, 3], samples=[False, True])

    empty, sampled = table.read_sampled(plan, output_of(2))
    assert empty is None and sampled is not None
    assert sampled.token_id == 1 and sampled.logprob == -1 and sampled.top_ids == (0,)
    nothing, prompt = table.read_prompt(plan, output_of(5))
    assert nothing is None and prompt is not None
    assert [entry.token_id for entry in prompt] == [2, 3]  # of prompt tokens 2 and 3
    assert prompt[0].top_ids == (0, 1)


def test_seeds():
    assert seed_words(2**64 - 1, 0, 0) == (2**32 - 1, 2**32 - 1)
    assert seed_words(3, 1, 2) == seed_words(3, 4, 5) == (0, 3)
    derived = {
        seed_words(None, seed, request) for seed in range(30) for request in range(30)
    }
    assert len(derived) == 900
    assert seed_words(None, 1, 23) != seed_words(None, 12, 3)
    assert seed_words(None, 0, 1) == seed_words(None, 0, 1)


def test_packed_inputs_run():
    settings = [
        GREEDY,
        SamplingParams(temperature=1.0, top_p=0.9, frequency_penalty=0.5, logprobs=2),
        SamplingParams(temperature=0, logit_bias={7: 100.0}, min_tokens=3),
    ]
    plan = plan_of([2, 0, 1], [3, 3, 3], [1, 1, 1])
    inputs, features = table_of(*settings).pack(plan, 4)
    logits = np.random.default_rng(0).normal(size=(4, V)).astype(np.float32)
    output = jax.jit(sample, static_argnums=2)(logits, inputs, features)
    assert output.tokens[0] == 7 and output.tokens[1] == logits[1].argmax()
    assert output.top_ids.shape == (4, 5)
