"""A tokenizer from the vocabulary that a GGUF file carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from paxkv.models.gguf_file import complete, import_gguf
from paxkv.token_bytes import WORD_START

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# The published pattern of the Llama 3 tokenizer; Qwen 2's differs in the digits only.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = _WORDS.format(digits=r"\p{N}{1,3}")
QWEN2_WORDS = _WORDS.format(digits=r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Token ids that begin and end a text."""

    bos: int | None
    eos: tuple[int, ...]


def read_gguf_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, SpecialIds]:
    """Reads the vocabulary of a GGUF file.

    Raises:
      ImportError: the `gguf` package is absent.
      ValueError: the file is damaged, has no vocabulary, or one of another kind.
    """
    facts = _read_facts(path)
    try:
        return build_gguf_tokenizer(facts)
    except KeyError as error:
        raise ValueError(
            f"{path} has no field tokenizer.ggml.{error.args[0]}; give the directory of "
            "the original model's tokenizer.json instead."
        ) from error
    except ValueError as error:
        raise ValueError(f"the tokenizer of {path}: {error}") from error


def build_gguf_tokenizer(
    facts: Mapping[str, Any],
) -> tuple[tokenizers.Tokenizer, SpecialIds]:
    """From the fields `tokenizer.ggml.*`, named without that prefix."""
    kind = facts["model"]
    facts = _with_visible_spaces(facts) if kind == "llama" else facts
    if kind not in _BUILDERS:
        raise ValueError(
            f"its vocabulary is of kind {kind!r}, supported are {', '.join(_BUILDERS)}; "
            "give the directory of the original model's tokenizer.json instead."
        )
    vocab = {token: token_id for token_id, token in enumerate(facts["tokens"])}
    backend = _BUILDERS[kind](facts, vocab)
    _add_special_tokens(backend, facts)
    bos = facts.get("bos_token_id")
    adds_bos = facts.get("add_bos_token", kind == "llama" or _is_llama3(facts))
    if adds_bos and bos is not None:
        token = facts["tokens"][bos]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", special_tokens=[(token, bos)]
        )
    ends = [facts.get(f"{name}_token_id") for name in ("eos", "eot")]
    eos = tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None))
    return backend, SpecialIds(bos=bos, eos=eos)


def _read_facts(path: Path) -> dict[str, Any]:
    gguf = import_gguf(path)
    prefix = "tokenizer.ggml."
    with complete(path):
        fields = gguf.GGUFReader(path).fields
        return {
            name.removeprefix(prefix): field.contents()
            for name, field in fields.items()
            if name.startswith(prefix)
        }


def _sentencepiece(facts: Mapping[str, Any], vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: of all neighbours join those whose union scores best."""
    unknown = facts["tokens"][facts.get("unknown_token_id", 0)]
    has_prefix = facts.get("add_space_prefix", True)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            _merges_by_score(facts, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    visible = normalizers.Replace(" ", WORD_START)
    steps: list[Any] = [
        decoders.Replace(WORD_START, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if has_prefix:
        visible = normalizers.Sequence([normalizers.Prepend(WORD_START), visible])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = visible
    backend.decoder = decoders.Sequence(steps)
    return backend


def _with_visible_spaces(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Runs of spaces as tokens that merges make, before all others, in order of id.

    Files hold them as user-defined tokens; the original tokenizer.json of Gemma makes
    them by merges, which differs in runs longer than the longest of these tokens.
    """
    tokens, types, scores = (
        list(facts[name]) for name in ("tokens", "token_type", "scores")
    )
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind == USER_DEFINED and len(token) > 1 and not token.strip(" "):
            tokens[token_id] = WORD_START * len(token)
            types[token_id], scores[token_id] = NORMAL, float("inf")
    return {**facts, "tokens": tokens, "token_type": types, "scores": scores}


def _merges_by_score(
    facts: Mapping[str, Any], vocab: Mapping[str, int]
) -> list[tuple[str, str]]:
    """All ways to make a token of two others, those of the best token first."""
    scores, types = facts["scores"], facts["token_type"]
    usable = {token: i for token, i in vocab.items() if types[i] == NORMAL}
    merges = []
    for token, token_id in usable.items():
        halves = [
            (usable[left], usable[right], left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in usable and (right := token[cut:]) in usable
        ]
        merges += [(-scores[token_id], token_id, *half) for half in sorted(halves)]
    merges.sort(key=lambda merge: merge[:2])  # stable: halves keep their order
    return [merge[-2:] for merge in merges]


def _byte_level(facts: Mapping[str, Any], vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """Byte-level BPE (GPT-2) with the file's own merges."""
    kind = facts.get("pre", "gpt-2")
    if kind not in _PRE_TOKENIZERS:
        raise ValueError(
            f"its words are cut in the manner {kind!r}, supported are "
            f"{', '.join(_PRE_TOKENIZERS)}; give the directory of the original model's "
            "tokenizer.json instead."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in facts["merges"]]
    model = models.BPE(vocab, merges, ignore_merges=_is_llama3(facts))
    backend = tokenizers.Tokenizer(model)
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    words = _PRE_TOKENIZERS[kind]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    steps = [to_bytes] if words is None else [words, to_bytes]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_special_tokens(backend: tokenizers.Tokenizer, facts: Mapping[str, Any]) -> None:
    """Control tokens, and user-defined ones, which are found before any merge."""
    typed = list(zip(facts["tokens"], facts["token_type"], strict=True))
    control = [token for token, kind in typed if kind in (CONTROL, UNKNOWN)]
    defined = [token for token, kind in typed if kind == USER_DEFINED]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token in defined])


def _is_llama3(facts: Mapping[str, Any]) -> bool:
    return facts.get("pre") in ("llama-bpe", "llama3", "llama-v3")


_LLAMA3 = pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated")
# tokenizer.ggml.pre; None: GPT-2's own pattern
_PRE_TOKENIZERS: Mapping[str, Any] = {
    "gpt-2": None,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
    "smollm": pre_tokenizers.Digits(individual_digits=True),
}
_BUILDERS = {"llama": _sentencepiece, "gpt2": _byte_level}
