"""`LLM`: text in, text out, over a tiny model saved as a checkpoint of the project."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paxkv import LLM, SamplingParams
from paxkv.invariants import check_invariants
from paxkv.models.checkpoint import save_checkpoint
from paxkv.tokenizer import byte_tokenizer
from tests.dense import dense_logits
from tests.tiny_model import tiny_byte_decoder

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPTS = ["hello", "a longer prompt than that", "x"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    byte_tokenizer().save(folder / "tokenizer.json")
    save_checkpoint(
        folder / "tiny", tiny_byte_decoder(), tokenizer=folder / "tokenizer.json"
    )
    return str(folder / "tiny")


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, num_blocks=40, block_size=8, max_num_seqs=8)


@pytest.fixture(autouse=True)
def all_blocks_come_back(llm):
    yield
    assert not llm.engine.scheduler.has_unfinished
    assert llm.engine.scheduler.allocator.usage(0).num_available == 39
    check_invariants(llm.engine.scheduler)


def test_outputs_keep_the_order_of_the_prompts(llm):
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt for output in outputs] == PROMPTS
    for output in outputs:
        (completion,) = output.outputs
        assert output.finished
        assert len(completion.token_ids) == 8
        assert completion.finish_reason == "length"
        assert "max_tokens=8" in completion.message
        assert output.metrics.num_output_tokens == 8


def test_one_text_and_token_ids_are_prompts_too(llm):
    (from_text,) = llm.generate("hello", GREEDY)
    (from_ids,) = llm.generate(list(b"hello"), GREEDY)
    (from_list,) = llm.generate([list(b"hello")], GREEDY)
    (from_array,) = llm.generate(list(np.frombuffer(b"hello", np.uint8)), GREEDY)
    assert from_text.outputs == from_ids.outputs == from_list.outputs == from_array.outputs
    assert from_ids.prompt is None
    assert from_ids.prompt_token_ids == tuple(b"hello")
    assert llm.generate([], GREEDY) == []


def test_a_refused_prompt_does_not_stop_the_others(llm):
    prompts = ["hello", "", [300], list(range(200)), "x"]
    outputs = llm.generate(prompts, GREEDY)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["length", "error", "error", "error", "length"]
    messages = [output.outputs[0].message for output in outputs]
    assert "empty" in messages[1]
    assert "300" in messages[2] and "255" in messages[2]
    assert "200" in messages[3] and "128" in messages[3]


def test_parameters_per_prompt(llm):
    settings = [SamplingParams(max_tokens=n, temperature=0.0) for n in (1, 2, 3)]
    outputs = llm.generate(PROMPTS, settings)
    assert all(
        len(output.outputs[0].token_ids) <= n
        for output, n in zip(outputs, (1, 2, 3), strict=True)
    )
    with pytest.raises(ValueError, match="2 sampling_params for 3 prompts"):
        llm.generate(PROMPTS, settings[:2])


def test_text_that_is_no_unicode_starts_nothing(llm):
    with pytest.raises(ValueError, match="surrogate"):
        llm.generate(["fine", "\ud800"], GREEDY)


def test_a_stop_string_ends_the_request_and_frees_its_blocks(llm):
    free = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    (output,) = llm.generate("hello", free)
    text = output.outputs[0].text
    stop = text[len(text) // 2 :][:2]
    settings = replace(free, stop=stop)
    (stopped,) = llm.generate("hello", settings)
    assert stopped.outputs[0].text == text[: text.index(stop)]
    assert stopped.outputs[0].finish_reason == "stop"
    assert stopped.outputs[0].stop_reason == stop


def test_stream_grows_to_the_same_output(llm):
    (whole,) = llm.generate("hello", GREEDY)
    seen = list(llm.stream("hello", GREEDY))
    assert seen[-1].finished
    assert seen[-1].outputs == whole.outputs
    texts = [output.outputs[0].text for output in seen]
    assert all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))


def test_two_streams_may_be_read_in_turn(llm):
    expected = [output.outputs for output in llm.generate(PROMPTS[:2], GREEDY)]
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    last = [None, None]
    ended = set()
    while len(ended) < 2:
        for index in {0, 1} - ended:
            output = next(streams[index], None)
            if output is None:
                ended.add(index)
            else:
                last[index] = output
    assert [output.outputs for output in last] == expected


def test_closing_a_stream_cancels(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)
    stream.close()
    llm.generate("x", GREEDY)


def test_an_interrupt_cancels_what_runs(llm, monkeypatch):
    monkeypatch.setattr(llm.executor, "run", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)


def _interrupt(plan):
    raise KeyboardInterrupt


def test_logprobs_of_output_and_prompt_agree_with_a_longer_prompt(llm):
    settings = SamplingParams(
        max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=3, prompt_logprobs=2
    )
    (output,) = llm.generate([list(b"hello")], settings)
    (completion,) = output.outputs
    assert len(completion.logprobs) == 4
    assert completion.cumulative_logprob == sum(e.logprob for e in completion.logprobs)
    for entry, token_id in zip(completion.logprobs, completion.token_ids, strict=True):
        assert entry.token_id == token_id == entry.top_ids[0]
        assert entry.rank == 1 and len(entry.top_ids) == 3
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 5
    # the output, appended to the prompt, must be as likely there
    longer = [*b"hello", *completion.token_ids]
    (again,) = llm.generate([longer], settings)
    appended = [entry.logprob for entry in again.prompt_logprobs[5:]]
    generated = [entry.logprob for entry in completion.logprobs]
    assert appended == pytest.approx(generated, abs=1e-4)


def test_perplexity_of_a_text_is_that_of_dense_attention(llm):
    text = "some text to score"
    ids = tuple(text.encode())
    logits = dense_logits(tiny_byte_decoder(), ids)[:-1].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    scored = logprobs[np.arange(len(ids) - 1), ids[1:]]
    assert llm.perplexity(text) == pytest.approx(np.exp(-scored.mean()), rel=1e-3)


def test_perplexity_of_a_text_longer_than_the_context_is_that_of_its_windows(llm):
    size = 127
    text = "".join(chr(97 + i * i % 26) for i in range(2 * size + 40))
    parts = [text[:size], text[size : 2 * size], text[2 * size :]]
    losses = [np.log(llm.perplexity(part)) * (len(part) - 1) for part in parts]
    expected = np.exp(sum(losses) / (len(text) - len(parts)))
    assert llm.perplexity(text, use_tqdm=False) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="1 tokens"):
        llm.perplexity("x")


def test_unknown_settings_are_refused(model):
    with pytest.raises(TypeError, match="blok_size"):
        LLM(model, blok_size=8)
    with pytest.raises(ValueError, match="max_context=4096"):
        LLM(model, max_model_len=4096)
    with pytest.raises(ValueError, match="implementation"):
        LLM(model, implementation="magic")


# As outside tests, where annotations are not enforced before the package's own checks.
untyped = inspect.unwrap


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 3}, "sampling_params={'max_tokens': 3} is a dict; give a Sampling"),
        (5, "sampling_params=5 is a int; give"),
        ("greedy", "sampling_params='greedy' is a str; give"),
        ([GREEDY, None], r"sampling_params\[1\]=None is a NoneType; give"),
    ],
)
def test_wrong_settings_start_nothing(llm, settings, message):
    with pytest.raises(TypeError, match=message):
        untyped(LLM.generate)(llm, ["hello", "x"], settings)
    if not isinstance(settings, list):
        with pytest.raises(TypeError, match=message):
            next(untyped(LLM.stream)(llm, "hello", settings))
    assert len(llm.generate("hello", GREEDY)) == 1


def test_arrays_and_numpy_integers_are_prompts(llm):
    (expected,) = llm.generate([5, 6, 7], GREEDY)
    for prompt in (np.array([5, 6, 7]), [np.int32(5), np.int64(6), 7], (5, 6, 7)):
        for prompts in (prompt, [prompt]):
            (output,) = llm.generate(prompts, GREEDY)
            assert output.prompt_token_ids == (5, 6, 7)
            assert output.outputs == expected.outputs
        assert list(llm.stream(prompt, GREEDY))[-1].outputs == expected.outputs
    rows = llm.generate(np.array([[5, 6, 7], [7, 6, 5]]), GREEDY)
    assert [output.prompt_token_ids for output in rows] == [(5, 6, 7), (7, 6, 5)]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "prompts is of type NoneType; give text"),
        (b"ab", "prompts is of type bytes; give text"),
        ({"a": 1}, "prompts is of type dict; give text"),
        (np.array(5), "prompts is of type ndarray; give text"),
        (["a", b"ab"], r"prompts\[1\] is of type bytes; give text"),
        (["a", bytearray(b"ab")], r"prompts\[1\] is of type bytearray; give text"),
        (["a", None], r"prompts\[1\] is of type NoneType; give text"),
        (["a", 1.5], r"prompts\[1\] is of type float; give text"),
        (["a", {1: 2}], r"prompts\[1\] is of type dict; give text"),
        (["a", [1, 2.5]], r"prompts\[1\]\[1\]=2.5 is no integer; a prompt is"),
        (
            ["a", [1, True]],
            r"prompts\[1\]\[1\]=True is a bool, not an integer; a prompt is",
        ),
        ([1, "a"], r"prompts\[0\]\[1\]='a' is no integer; a prompt is"),
        ([1, None], r"prompts\[0\]\[1\]=None is no integer; a prompt is"),
        (np.array([1.0]), r"prompts\[0\] is of type float; give text"),
    ],
)
def test_what_is_no_prompt_is_named_and_starts_nothing(llm, prompts, message):
    with pytest.raises(TypeError, match=message):
        untyped(LLM.generate)(llm, prompts, GREEDY)


def test_a_failure_while_adding_cancels_what_was_added(llm, monkeypatch):
    add, added = llm.engine.add, []

    def add_two(*args, **options):
        if len(added) == 2:
            raise MemoryError("no room for a third")
        added.append(add(*args, **options))
        return added[-1]

    monkeypatch.setattr(llm.engine, "add", add_two)
    with pytest.raises(MemoryError):
        llm.generate(PROMPTS, GREEDY)
    assert len(added) == 2


def test_a_model_is_a_path(model):
    path = Path(model)
    llm = LLM(path, tokenizer=path, num_blocks=9, max_model_len=32)
    assert llm.config.model == model
    for value in (None, 5):
        with pytest.raises(TypeError, match=f"model={value} is no path; give"):
            untyped(LLM.__init__)(object.__new__(LLM), value)
    with pytest.raises(TypeError, match="tokenizer=5 is no path; give"):
        untyped(LLM.__init__)(object.__new__(LLM), model, tokenizer=5)
    with pytest.raises(ValueError, match="model is the empty path; give"):
        LLM("")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_memory_utilization": 1.5}, "memory_fraction=1.5.*gpu_memory_utilization"),
        ({"kv_cache_dtype": "int3"}, "dtype='int3'.*kv_cache_dtype"),
        ({"max_model_len": 1}, "max_context=1 .*max_model_len"),
    ],
)
def test_messages_name_the_callers_parameter(model, settings, message):
    with pytest.raises(ValueError, match=message):
        LLM(model, **settings)
