"""The bytes that each token stands for, from a tokenizer's own description.

Text is decoded from bytes, not by the tokenizers library, so that a stream of tokens
and the whole of it give the same text, invalid bytes included: one U+FFFD for each
maximal invalid part, as Unicode recommends.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

WORD_START = "\u2581"  # SentencePiece's visible space
SUPPORTED = "ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace and Sequence"

Rule = Callable[[str], str | bytes]  # a token's text, or already its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRules:
    """How a token becomes bytes, and whether a text's first space is an artefact."""

    rules: tuple[Rule, ...]
    strips_first_space: bool

    def apply(self, token: str) -> bytes:
        """Applies the rules in turn, until one gives bytes."""
        value: str | bytes = token
        for rule in self.rules:
            if isinstance(value, bytes):
                break
            value = rule(value)
        return value if isinstance(value, bytes) else value.encode()


def byte_rules(backend: tokenizers.Tokenizer) -> ByteRules:
    """Reads the decoder part of a tokenizer.

    Raises:
      ValueError: it has a step whose result is no concatenation of token bytes.
    """
    decoder = json.loads(backend.to_str())["decoder"]
    steps = _flat(decoder)
    if not steps:
        raise ValueError(f"its decoder is {decoder}, but must be made of {SUPPORTED}.")
    rules: list[Rule] = []
    strips_first_space = False
    for index, step in enumerate(steps):
        kind = step["type"]
        if kind == "ByteLevel":
            rules.append(_from_byte_level)
        elif kind == "ByteFallback":
            rules.append(_from_byte_fallback)
        elif kind == "Replace" and "String" in step["pattern"]:
            rules.append(_replacing(step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            rules.append(_replacing(step["replacement"], " "))
            strips_first_space |= step.get("prepend_scheme", "always") != "never"
        elif kind == "Strip" and _strips_one_space(step, steps[:index]):
            strips_first_space = True
        elif kind != "Fuse":
            raise ValueError(f"its decoder has the step {step}, not one of {SUPPORTED}.")
    return ByteRules(rules=tuple(rules), strips_first_space=strips_first_space)


def byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2, 2019).

    Printable bytes of Latin-1 stand for themselves; the rest, in order, for the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def _flat(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flat(part)]
    return [decoder]


def _strips_one_space(step: Mapping[str, Any], before: list[Mapping[str, Any]]) -> bool:
    """After Fuse, a Strip acts once on the text; before it, on every token."""
    is_fused = any(earlier["type"] == "Fuse" for earlier in before)
    return is_fused and (step["content"], step["start"], step["stop"]) == (" ", 1, 0)


def _replacing(old: str, new: str) -> Rule:
    return lambda token: token.replace(old, new)


def _from_byte_level(token: str) -> bytes:
    """A token with a character outside the alphabet is added text, and means itself."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _from_byte_fallback(token: str) -> str | bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            return token
    return token


_BYTE_OF_CHARACTER = byte_level_alphabet()
