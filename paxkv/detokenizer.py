"""Token ids to text as they arrive: whole characters only, up to a stop string."""

import codecs
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from paxkv.sampling_params import SamplingParams


@runtime_checkable
class TokenText(Protocol):
    """What streaming needs of a `Tokenizer`."""

    @property
    def strips_first_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class DetokenizerStream:
    """Text of a growing sequence of token ids, O(1) amortised per token.

    The pieces and `flush` joined are `tokenizer.decode` of all ids. Bytes that may
    still become a character wait; bytes that cannot come out as U+FFFD at once.
    """

    def __init__(
        self,
        tokenizer: TokenText,
        *,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
    ):
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._drops_space = tokenizer.strips_first_space and not continues_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The text that is certain now that this token follows; may be empty."""
        if self._skips_special and self._tokenizer.is_special(token_id):
            return ""
        return self._emit(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """The rest: an incomplete character as U+FFFD. Ends the stream."""
        return self._emit(self._decoder.decode(b"", final=True))

    def _emit(self, text: str) -> str:
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


class StopChecker:
    """Ends a text at the stop string that is complete first, wherever pieces are cut.

    Of several complete at the same character the longest counts. Text that may be the
    beginning of a stop string is held back.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False):
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_stop: bool = True) -> str:
        """The text that is certain to belong to the output; nothing after a match.

        Args:
          may_stop: a stop string may be completed by this text. If not, its end is
            still remembered as the possible beginning of one.
        """
        if self.matched is not None or not text:
            return ""
        num_old, text = len(self._held), self._held + text
        match = self._first_match(text, num_old) if may_stop else None
        if match is not None:
            end, start, self.matched = match
            self._held = ""
            return text[: end if self._include_stop else start]
        certain = len(text) - self._num_to_hold(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """What was held back; it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, num_old: int) -> tuple[int, int, str] | None:
        """(end, start, stop string); the end lies in text[num_old:]."""
        matches = [
            (start + len(stop), start, stop)
            for stop in self._stop
            if (start := text.find(stop, max(0, num_old - len(stop) + 1))) >= 0
        ]
        return min(matches, default=None)

    def _num_to_hold(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stop if len(stop) > length):
                return length
        return 0


class TextStream:
    """The output text of one request: detokenised, and ended at a stop string.

    Stop tokens are not to be pushed: their text is not part of the output.
    """

    def __init__(
        self, tokenizer: TokenText, sampling: SamplingParams, *, continues_text: bool = True
    ):
        self._min_tokens = sampling.min_tokens
        self._num_tokens = 0
        self._tokens = DetokenizerStream(
            tokenizer,
            skip_special_tokens=sampling.skip_special_tokens,
            continues_text=continues_text,
        )
        self._checker = StopChecker(
            sampling.stop, include_stop=sampling.include_stop_str_in_output
        )

    @property
    def stop_string(self) -> str | None:
        """The stop string that was met; from then on no text comes out."""
        return self._checker.matched

    def push(self, token_id: int) -> str:
        """The text that is certain with one more output token; may be empty."""
        self._num_tokens += 1
        return self._checker.feed(self._tokens.feed(token_id), may_stop=self._may_stop)

    def flush(self) -> str:
        """What was held back. Ends the stream; may itself complete a stop string."""
        text = self._checker.feed(self._tokens.flush(), may_stop=self._may_stop)
        return text + self._checker.flush()

    @property
    def _may_stop(self) -> bool:
        return self._num_tokens > self._min_tokens
