"""The formats that can be read, and how a file's own is found out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOBase

from paxkv.workloads.sessions import Session
from paxkv.workloads.traces import (
    azure,
    benchmark,
    burstgpt,
    llmservingsim,
    mooncake,
    own,
    sharegpt,
)
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow

AUTO = "auto"
Record = TraceRow | Session
Rows = Callable[[TextIOBase, Malformed, CountTokens], Iterator[tuple[int, Record]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """How to read a file."""

    rows: Rows  # and the number of the line of each
    matches: Callable[[str], bool]  # whether a file with this first line has the format


FORMATS: Mapping[str, TraceFormat] = {
    "azure": TraceFormat(rows=azure.rows, matches=azure.matches),
    "mooncake": TraceFormat(rows=mooncake.rows, matches=mooncake.matches),
    "bailian": TraceFormat(rows=mooncake.bailian_rows, matches=mooncake.bailian_matches),
    "burstgpt": TraceFormat(rows=burstgpt.rows, matches=burstgpt.matches),
    "sharegpt": TraceFormat(rows=sharegpt.rows, matches=sharegpt.matches),
    "vllm": TraceFormat(rows=benchmark.vllm_rows, matches=benchmark.vllm_matches),
    "sglang": TraceFormat(rows=benchmark.sglang_rows, matches=benchmark.sglang_matches),
    "llmservingsim": TraceFormat(rows=llmservingsim.rows, matches=llmservingsim.matches),
    "paxkv": TraceFormat(rows=own.rows, matches=own.matches),
}


def format_of(first_line: str) -> str | None:
    """The name of the format that begins so; None: of none that is known."""
    return next((name for name, kind in FORMATS.items() if kind.matches(first_line)), None)
