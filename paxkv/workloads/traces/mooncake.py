"""Traces whose prompts are known by hashes of their blocks: one JSON object a line.

Mooncake's (Qin et al., FAST 2025, https://github.com/kvcache-ai/Mooncake) have times in
milliseconds and blocks of 512 tokens. Those of Bailian
(https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon) have seconds, blocks of 16
tokens and a chat's number.
"""

from collections.abc import Iterator
from io import TextIOBase

from paxkv.workloads.traces.lines import (
    has_keys,
    json_object,
    num_tokens,
    numbered_lines,
    require_keys,
    time,
    token_ids,
)
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
BLOCK_TOKENS = 512  # of Mooncake
BAILIAN_BLOCK_TOKENS = 16


def matches(first_line: str) -> bool:
    return has_keys(first_line, *KEYS) and not bailian_matches(first_line)


def bailian_matches(first_line: str) -> bool:
    return has_keys(first_line, *KEYS, "chat_id")


def rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """Of Mooncake's format, lazily."""
    return _rows(file, malformed, "milliseconds", BLOCK_TOKENS)


def bailian_rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """Of Bailian's format, lazily. Each turn has a time, so each is a request."""
    return _rows(file, malformed, "seconds", BAILIAN_BLOCK_TOKENS)


def _rows(
    file: TextIOBase, malformed: Malformed, unit: str, block_tokens: int
) -> Iterator[tuple[int, TraceRow]]:
    per_second = 1e3 if unit == "milliseconds" else 1.0
    for number, line in numbered_lines(file, malformed):
        try:
            row = json_object(line)
            require_keys(row, *KEYS)
            chat = row.get("chat_id")
            parsed = TraceRow(
                input_tokens=num_tokens("input_length", row["input_length"]),
                output_tokens=num_tokens("output_length", row["output_length"]),
                arrival_s=time("timestamp", row["timestamp"], unit) / per_second,
                hash_ids=token_ids("hash_ids", row["hash_ids"]),
                hash_block_tokens=block_tokens,
                session=None if chat is None else str(chat),
            )
        except ValueError as error:
            malformed(number, str(error))
        else:
            yield number, parsed
