"""Streamed text: whole characters, the same as all at once, up to a stop string."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from paxkv.detokenizer import DetokenizerStream, StopChecker, TextStream
from paxkv.sampling_params import SamplingParams
from paxkv.token_bytes import byte_level_alphabet
from paxkv.tokenizer import Tokenizer, byte_tokenizer

BYTES = byte_tokenizer()
EMOJI = st.sampled_from(["🤗", "👩‍👩‍👧", "🇫🇷", "é", "日", "\ufffd", "\u0000", "e\u0301"])
TEXT = st.lists(st.one_of(EMOJI, st.text(max_size=4)), max_size=12).map("".join)


def byte_level(merged: int) -> Tokenizer:
    """Byte-level BPE whose last tokens hold parts of characters, and of two at once."""
    alphabet = byte_level_alphabet()
    names = {byte: name for name, byte in alphabet.items()}
    emoji = "🤗é".encode()
    parts = [emoji[i:j] for i in range(6) for j in range(i + 2, 7)][:merged]
    joined = ("".join(names[byte] for byte in part) for part in parts)
    vocab = alphabet | {token: 256 + i for i, token in enumerate(joined)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


PARTS = byte_level(15)


def pieces_of(stream: DetokenizerStream, ids) -> list[str]:
    return [*(stream.feed(token_id) for token_id in ids), stream.flush()]


@given(TEXT)
@settings(max_examples=200, deadline=None)
def test_text_comes_out_whole(text):
    text = text.encode(errors="ignore").decode()
    pieces = pieces_of(DetokenizerStream(BYTES), text.encode())
    assert "".join(pieces) == text
    assert pieces[-1] == ""  # nothing was held back longer than needed
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(st.lists(st.integers(0, 270), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_ids_give_the_text_of_all_at_once(ids):
    pieces = pieces_of(DetokenizerStream(PARTS), ids)
    everything = b"".join(map(PARTS.token_bytes, ids)).decode("utf-8", "replace")
    assert "".join(pieces) == everything == PARTS.decode(ids)
    assert everything == PARTS._backend.decode(ids)  # the library's own reading


def test_half_a_character_waits_and_invalid_bytes_do_not():
    stream = DetokenizerStream(BYTES)
    hugging = "🤗".encode()
    assert [stream.feed(byte) for byte in hugging] == ["", "", "", "🤗"]
    assert stream.feed(0xFF) == "\ufffd"
    assert [stream.feed(byte) for byte in (*hugging[:2], 0x41)] == ["", "", "\ufffdA"]
    assert [stream.feed(byte) for byte in hugging[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"


def test_long_invalid_input_is_not_held_back():
    stream = DetokenizerStream(BYTES)
    pieces = [stream.feed(0xE4) for _ in range(5000)]  # each might begin a character
    assert pieces == ["", *["\ufffd"] * 4999]


def test_special_tokens():
    backend = tokenizers.Tokenizer(models.BPE(byte_level_alphabet(), []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(backend)
    ids = [65, 256, 66]
    assert pieces_of(DetokenizerStream(tokenizer), ids) == ["A", "", "B", ""]
    shown = DetokenizerStream(tokenizer, skip_special_tokens=False)
    assert pieces_of(shown, ids) == ["A", "<s>", "B", ""]


def checked(checker: StopChecker, pieces) -> str:
    return "".join([*map(checker.feed, pieces), checker.flush()])


def cut(text: str, points: list[int]) -> list[str]:
    bounds = [0, *sorted(min(point, len(text)) for point in points), len(text)]
    return [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def expected_output(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: the shortest beginning of the text that ends in a stop string."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 30), max_size=12),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_stop_strings_do_not_depend_on_where_pieces_are_cut(text, stop, points, include):
    checker = StopChecker(stop, include_stop=include)
    output = checked(checker, cut(text, points))
    assert (output, checker.matched) == expected_output(text, stop, include)


def test_only_what_may_begin_a_stop_string_is_held_back():
    checker = StopChecker(["\n\nUser:"])
    assert [checker.feed(piece) for piece in ("Hi", "\n", "\nUs", "e", "!")] == [
        "Hi",
        "",
        "",
        "",
        "\n\nUse!",
    ]
    assert checker.matched is None


def test_held_text_is_released_at_the_end():
    checker = StopChecker(["stop"])
    assert checker.feed("a sto") == "a " and checker.flush() == "sto"


def test_nothing_follows_a_match():
    checker = StopChecker(["."])
    assert checker.feed("a.b") == "a" and checker.feed("c") == "" == checker.flush()
    assert checker.matched == "."


def output_of(text: str, **settings) -> tuple[list[str], str | None]:
    stream = TextStream(BYTES, SamplingParams(max_tokens=99, **settings))
    pieces = [stream.push(byte) for byte in text.encode()]
    return [*pieces, stream.flush()], stream.stop_string


@pytest.mark.parametrize(
    ("min_tokens", "expected"),
    [(0, "x"), (2, "x"), (3, "xaby"), (5, "xaby"), (6, "xabyabz"), (9, "xabyabz")],
)
def test_min_tokens(min_tokens, expected):
    """A stop string counts if a token after the first `min_tokens` completes it."""
    pieces, _ = output_of("xabyabz", stop="ab", min_tokens=min_tokens)
    assert "".join(pieces) == expected


def test_a_match_may_begin_before_min_tokens_and_end_after():
    pieces, met = output_of("xabz", stop="ab", min_tokens=2)
    assert "".join(pieces) == "x" and met == "ab"


def test_including_the_stop_string():
    pieces, met = output_of("one.two", stop=["."], include_stop_str_in_output=True)
    assert "".join(pieces) == "one." and met == "."


def test_stop_strings_of_several_bytes_per_character():
    pieces, met = output_of("日本🤗語", stop="🤗")
    assert "".join(pieces) == "日本" and met == "🤗"


def test_an_incomplete_character_at_the_end():
    stream = TextStream(BYTES, SamplingParams(stop="\ufffd"))
    assert stream.push(0xF0) == "" and stream.flush() == ""
    assert stream.stop_string == "\ufffd"
