import json

import pytest

from paxkv.workloads.traces.formats import FORMATS, format_of

HASHES = {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}
FIRST_LINES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "mooncake": json.dumps(HASHES),
    "bailian": json.dumps(HASHES | {"chat_id": 1}),
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "sharegpt": "[{",
    "vllm": '{"prompt": "a", "output_tokens": 1}\n',
    "sglang": '{"conversations": []}\n',
    "llmservingsim": '{"input_toks": 1, "output_toks": 1, "arrival_time_ns": 1}',
    "paxkv": '{"arrival_s": 0, "turns": []}',
}


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_first_line_tells_one_format(name):
    first_line = FIRST_LINES[name]
    assert format_of(first_line) == name
    assert [n for n, kind in FORMATS.items() if kind.matches(first_line)] == [name]


@pytest.mark.parametrize(
    "first_line", ["", "\n", "a,b,c\n", "{}", "{", "3", "\x00\x01\ufffd", '"' * 200_000]
)
def test_other_lines_tell_none(first_line):
    assert format_of(first_line) is None
