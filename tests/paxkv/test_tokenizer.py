"""Tokenizers from directories and from GGUF vocabularies."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from paxkv.gguf_tokenizer import CONTROL, NORMAL, USER_DEFINED, build_gguf_tokenizer
from paxkv.token_bytes import byte_level_alphabet
from paxkv.tokenizer import Tokenizer, byte_tokenizer

BYTE = 6  # tokenizer.ggml.token_type
GEMMA = "PAXKV_GEMMA3_GGUF"  # environment variable: path of the weights
REFERENCE = "PAXKV_REFERENCE"  # environment variable: gemma3_270m_greedy.json
TEXTS = ["", "hello hello", " naïve 日本語 🤗👩‍👩‍👧", "a\n\n  b\tc", "<|end|>x"]


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE with a few merges and two added tokens, as GPT-2's kind is."""
    vocab = byte_level_alphabet() | {"he": 256, "ll": 257, "Ġhe": 258}
    merges = [("h", "e"), ("l", "l"), ("Ġ", "he")]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens([AddedToken("two words")])
    return backend


def write_model(directory: Path, **files) -> Path:
    """A directory with a tokenizer and the given JSON files."""
    byte_level_backend().save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def sentencepiece_facts(**changes) -> dict:
    """The vocabulary of a GGUF of kind `llama`: bytes, letters and joined pieces."""
    pieces = ["▁", *"abcdefghilorw", "lo", "▁w", "or", "▁wor", "he", "hel", "▁hel", "ld"]
    special = ["<unk>", "<s>", "</s>", "<user>"]
    tokens = [*special, *[f"<0x{i:02X}>" for i in range(256)], *pieces, "   "]
    types = [2, CONTROL, CONTROL, USER_DEFINED, *[BYTE] * 256]
    types += [NORMAL] * len(pieces) + [USER_DEFINED]
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [0.0] * 260 + [-float(i) for i in range(len(pieces))] + [-1000.0],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes


def from_facts(facts: dict) -> Tokenizer:
    backend, ids = build_gguf_tokenizer(facts)
    return Tokenizer(backend, bos_token_id=ids.bos, eos_token_ids=ids.eos)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_round_trip(tmp_path, text):
    tokenizer = Tokenizer.load(write_model(tmp_path))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids) == text.replace("<|end|>", "")


@given(st.lists(st.integers(0, 262), max_size=30), st.booleans())
@settings(max_examples=200, deadline=None)
def test_byte_level_decodes_as_the_library_does(ids, skip):
    backend = byte_level_backend()
    expected = backend.decode(ids, skip_special_tokens=skip)
    assert Tokenizer(backend).decode(ids, skip) == expected


def test_special_ids_come_from_the_files(tmp_path):
    directory = write_model(
        tmp_path,
        config={"eos_token_id": 3},
        generation_config={"eos_token_id": [4, 259]},
        tokenizer_config={
            "bos_token": {"content": "<|end|>"},
            "eos_token": "<|end|>",
            "add_bos_token": True,
        },
    )
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.bos_token_id == 259
    assert tokenizer.eos_token_ids == (259, 4)
    assert tokenizer.encode("he") == [259, 256]
    assert tokenizer.encode("<|end|>he") == [259, 256]  # not twice
    assert tokenizer.encode("he", add_special_tokens=False) == [256]
    assert tokenizer.is_special(259) and not tokenizer.is_special(260)
    assert tokenizer.vocab_size == 261


def test_our_own_checkpoints_name_eos_in_the_config(tmp_path):
    directory = write_model(tmp_path, config={"eos_token_ids": [10], "bos_token_id": None})
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.eos_token_ids == (10,) and tokenizer.bos_token_id is None
    assert Tokenizer.load(directory / "tokenizer.json").eos_token_ids == (10,)


def test_vocab_and_merges(tmp_path):
    """OPT's and GPT-2's older form; </s> is BOS and EOS of OPT."""
    vocab = byte_level_alphabet() | {"he": 256, "</s>": 257}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    settings = {"bos_token": "</s>", "eos_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("he") == [257, 256]
    assert tokenizer.decode([257, 256, 257]) == "he"


def test_ids_are_bytes():
    tokenizer = byte_tokenizer()
    text = "k7=Qx;?\n🤗é"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(text.encode()) == text
    assert tokenizer.vocab_size == 256


@pytest.mark.parametrize("ids", [[-1], [10_000], [2**40]])
def test_ids_without_a_token_have_no_text(ids):
    assert byte_tokenizer().decode([65, *ids, 66]) == "AB"


def test_surrogates_are_refused():
    with pytest.raises(ValueError, match="surrogate"):
        byte_tokenizer().encode("a\ud800")


@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("text", ["hello world", "é 🤗 x", " hello", "a    b", ""])
def test_sentencepiece_round_trip(text, has_prefix):
    tokenizer = from_facts(sentencepiece_facts(add_space_prefix=has_prefix))
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


def test_sentencepiece_joins_the_best_score_first():
    facts = sentencepiece_facts(add_space_prefix=False, add_bos_token=False)
    tokenizer = from_facts(facts)
    tokens = [facts["tokens"][i] for i in tokenizer.encode("hello world")]
    # `lo` scores above `he` and `hel`; `▁wor` is made of `▁w` and `or`
    assert tokens == ["hel", "lo", "▁wor", "ld"]


def test_a_continuation_keeps_its_first_space():
    facts = sentencepiece_facts()
    tokenizer = from_facts(facts)
    ids = [facts["tokens"].index(piece) for piece in ("▁wor", "ld")]
    assert tokenizer.decode(ids) == "world"
    assert tokenizer.decode(ids, continues_text=True) == " world"


def test_user_defined_tokens_are_found_before_merges():
    facts = sentencepiece_facts(add_space_prefix=False, add_bos_token=False)
    ids = from_facts(facts).encode("h<user>   e</s>")
    assert [facts["tokens"][i] for i in ids] == ["h", "<user>", "▁", "▁", "▁", "e", "</s>"]


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_gguf_with_byte_level_bpe(kind):
    tokens = [*byte_level_alphabet(), "he", "ll", "12", "123", "<|end|>"]
    facts = {
        "model": "gpt2",
        "pre": kind,
        "tokens": tokens,
        "token_type": [NORMAL] * 260 + [CONTROL],
        "merges": ["h e", "l l", "1 2", "12 3"],
        "bos_token_id": 260,
        "eos_token_id": 260,
    }
    tokenizer = from_facts(facts)
    cut = tokenizer.encode("1234", add_special_tokens=False)
    whole = kind in ("gpt-2", "llama-bpe")  # the others cut digit from digit
    assert len(cut) == (2 if whole else 4)
    ids = tokenizer.encode("hello 🤗\n\n x's")
    assert (ids[0] == 260) == (kind == "llama-bpe")
    assert tokenizer.decode(ids) == "hello 🤗\n\n x's"
    assert tokenizer.eos_token_ids == (260,)


@pytest.mark.parametrize(
    "changes", [{"model": "bert"}, {"model": "gpt2", "pre": "strange", "merges": []}]
)
def test_unsupported_gguf_vocabularies_are_named(changes):
    with pytest.raises(ValueError, match=r"(bert|strange).*supported.*tokenizer.json"):
        build_gguf_tokenizer(sentencepiece_facts(**changes))


def test_nothing_there(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*tokenizer\.json"):
            Tokenizer.load(path)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 3}'])
def test_damaged_files(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"damaged.*download it again"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_settings(tmp_path, content):
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"generation_config.json.*download it again"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\x01" * 40])
def test_damaged_gguf(tmp_path, content):
    pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no complete GGUF file"):
        Tokenizer.load(path)


def test_unsupported_decoders_are_named(tmp_path):
    backend = byte_level_backend()
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="WordPiece"):
        Tokenizer.load(tmp_path)


def test_metaspace_drops_its_own_space(tmp_path):
    backend = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1, "▁a": 2}, [("▁", "a")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([2, 2]) == "a a" == backend.decode([2, 2])


def test_saving_a_gguf_vocabulary(tmp_path):
    tokenizer = from_facts(sentencepiece_facts())
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path)
    assert again.encode("hello <user> 🤗") == tokenizer.encode("hello <user> 🤗")
    assert again.decode([1, 3, 290]) == tokenizer.decode([1, 3, 290])


@pytest.mark.skipif(
    not (os.environ.get(GEMMA) and os.environ.get(REFERENCE)),
    reason=f"needs {GEMMA} and {REFERENCE}, paths of local files",
)
def test_gemma3_tokens_are_those_of_the_reference():
    tokenizer = Tokenizer.load(os.environ[GEMMA])
    reference = json.loads(Path(os.environ[REFERENCE]).read_text())
    for entry in reference["short"]:
        assert tokenizer.encode(entry["prompt"]) == entry["prompt_ids"]
        assert tokenizer.decode(entry["generated_ids"]) == entry["text"]
    long = reference["long_past_the_512_window"]
    assert tokenizer.encode(tokenizer.decode(long["prompt_ids"])) == long["prompt_ids"]
    assert tokenizer.decode(long["generated_ids"]) == long["text"]
