"""ShareGPT's conversations: one JSON array, read element by element.

Format of ShareGPT_V3_unfiltered_cleaned_split.json, https://huggingface.co/datasets/
anon8231489123/ShareGPT_Vicuna_unfiltered: objects with `id` and `conversations`, whose
turns are texts, first the user's. Lengths need a tokenizer.
"""

import json
from collections.abc import Iterator
from io import TextIOBase
from typing import Any

from paxkv.workloads.traces.benchmark import conversation_texts
from paxkv.workloads.traces.lines import MAX_LINE_CHARS
from paxkv.workloads.traces.rows import CountTokens, Malformed, TraceRow

PIECE_CHARS = 2**16
_BETWEEN = " \t\r\n,"


def matches(first_line: str) -> bool:
    return first_line.lstrip().startswith("[")


def rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, TraceRow]]:
    """One row a pair of turns; those of one conversation follow each other."""
    for index, (number, conversation) in enumerate(_elements(file, malformed)):
        try:
            if not isinstance(conversation, dict):
                raise ValueError(f"is a {type(conversation).__name__}, not an object")
            texts = conversation_texts(conversation)
            lengths = [count_tokens(text) for text in texts]
        except ValueError as error:
            malformed(number, str(error))
            continue
        for asked, answered in zip(lengths[::2], lengths[1::2], strict=False):
            yield (
                number,
                TraceRow(
                    arrival_s=None,
                    input_tokens=asked,
                    output_tokens=answered,
                    session=f"{index} {conversation.get('id', '')}",
                ),
            )


def _elements(file: TextIOBase, malformed: Malformed) -> Iterator[tuple[int, Any]]:
    """Elements of the array, each with the number of the line where it begins."""
    decoder = json.JSONDecoder()
    number, text = 1, ""
    while not text and (text := file.read(PIECE_CHARS)):
        number += text[: len(text) - len(text.lstrip())].count("\n")
        text = text.lstrip()
    if not text.startswith("["):
        raise ValueError(f"it begins with {text[:20]!r}, not with the [ of an array")
    text = text[1:]
    while True:
        rest = text.lstrip(_BETWEEN)
        number += text[: len(text) - len(rest)].count("\n")
        text = rest
        if text.startswith("]"):
            return
        try:
            element, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
            # not yet whole, or wrong; read as much again, so that no text is tried often
            more = file.read(max(PIECE_CHARS, len(text)))
            if not more or len(text) > MAX_LINE_CHARS:
                reason = (
                    "is nested too deeply" if isinstance(error, RecursionError) else error
                )
                malformed(number, f"{reason}; what follows cannot be read")
                return
            text += more
        else:
            yield number, element
            number += text[:end].count("\n")
            text = text[end:]
