"""Custom datasets of the benchmarks of vLLM and SGLang: one JSON object a line.

vLLM (`vllm bench serve --dataset-name custom`, https://docs.vllm.ai/en/latest/benchmarking/):
`prompt`, a text, and `output_tokens`. SGLang (`bench_serving --dataset-name custom`,
https://docs.sglang.ai/developer_guide/bench_serving.html): `conversations`, a list of turns
whose text is called `content` or `value`; the first is the prompt, the second the output.
Both benchmarks draw the arrivals, so there are no times.
"""

from collections.abc import Iterator
from io import TextIOBase
from typing import Any

from paxkv.workloads.traces.lines import (
    has_keys,
    json_object,
    num_tokens,
    numbered_lines,
    require_keys,
    token_ids,
)
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow


def vllm_matches(first_line: str) -> bool:
    return has_keys(first_line, "prompt")


def sglang_matches(first_line: str) -> bool:
    return has_keys(first_line, "conversations") or has_keys(first_line, "conversation")


def vllm_rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """A prompt may also be a list of token ids."""
    for number, line in numbered_lines(file, malformed):
        try:
            row = json_object(line)
            require_keys(row, "prompt", "output_tokens")
            prompt = row["prompt"]
            ids = token_ids("prompt", prompt) if isinstance(prompt, list) else ()
            parsed = TraceRow(
                arrival_s=None,
                input_tokens=len(ids) or count_tokens(_text("prompt", prompt)),
                output_tokens=num_tokens("output_tokens", row["output_tokens"]),
                prompt_ids=ids,
            )
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield number, parsed


def sglang_rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """As SGLang does, the first turn and its answer."""
    for number, line in numbered_lines(file, malformed):
        try:
            texts = conversation_texts(json_object(line))
            parsed = TraceRow(
                arrival_s=None,
                input_tokens=count_tokens(texts[0]),
                output_tokens=count_tokens(texts[1]),
            )
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield number, parsed


def conversation_texts(row: dict[str, Any]) -> list[str]:
    """What was said in turns, by user and model, at least once each."""
    turns = row.get("conversations", row.get("conversation"))
    if not isinstance(turns, list) or len(turns) < 2:
        raise ValueError("has no conversation of at least two turns")
    return [_text("turn", _said(turn)) for turn in turns]


def _said(turn: object) -> object:
    if not isinstance(turn, dict):
        raise ValueError(f"has a turn that is a {type(turn).__name__}, not an object")
    return turn.get("value", turn.get("content"))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is a {type(value).__name__}, not a text")
    return value
