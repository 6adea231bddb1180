import io
import json

import pytest

from paxkv.workloads.traces import benchmark
from paxkv.workloads.traces.rows import TraceRow

SAID = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e"}]
OTHER_SAID = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b c d"}]


def read(reader, *lines):
    told = []
    text = "".join(
        (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines
    )
    rows = reader(
        io.StringIO(text),
        lambda n, why: told.append((n, why)),
        lambda text: len(text.split()),  # tokens
    )
    return list(rows), told


def test_reads_vllms_prompts():
    rows, told = read(
        benchmark.vllm_rows,
        {"prompt": "What is it?", "output_tokens": 10},
        {"prompt": [5, 6], "output_tokens": 1},
    )
    assert rows == [
        (1, TraceRow(arrival_s=None, input_tokens=3, output_tokens=10)),
        (2, TraceRow(arrival_s=None, input_tokens=2, output_tokens=1, prompt_ids=(5, 6))),
    ]
    assert not told


def test_reads_sglangs_conversations():
    rows, told = read(
        benchmark.sglang_rows, {"conversations": SAID}, {"conversation": OTHER_SAID}
    )
    assert rows == [
        (1, TraceRow(arrival_s=None, input_tokens=3, output_tokens=2)),
        (2, TraceRow(arrival_s=None, input_tokens=1, output_tokens=3)),
    ]
    assert not told


@pytest.mark.parametrize(
    ("reader", "line", "why"),
    [
        (benchmark.vllm_rows, {"prompt": "a"}, "has no output_tokens"),
        (benchmark.vllm_rows, {"prompt": 3, "output_tokens": 1}, "prompt is a int"),
        (benchmark.vllm_rows, {"prompt": [-1], "output_tokens": 1}, "prompt is no list"),
        (benchmark.vllm_rows, {"prompt": "a", "output_tokens": "x"}, "output_tokens='x'"),
        (benchmark.vllm_rows, "junk", "Expecting value"),
        (benchmark.sglang_rows, {"prompt": "a"}, "has no conversation"),
        (benchmark.sglang_rows, {"conversations": SAID[:1]}, "has no conversation of at"),
        (benchmark.sglang_rows, {"conversations": ["a", "b"]}, "has a turn that is a str"),
        (
            benchmark.sglang_rows,
            {"conversations": [SAID[0], {"content": None}]},
            "turn is a NoneType, not a text",
        ),
    ],
)
def test_malformed_lines_are_told(reader, line, why):
    rows, told = read(reader, line)
    assert not rows
    assert told[0][0] == 1 and told[0][1].startswith(why)


def test_the_keys_tell_the_format():
    assert benchmark.vllm_matches('{"prompt": "a", "output_tokens": 1}')
    assert not benchmark.vllm_matches(json.dumps({"conversations": SAID}))
    assert benchmark.sglang_matches(json.dumps({"conversations": SAID}))
    assert not benchmark.sglang_matches('{"prompt": "a"}')
