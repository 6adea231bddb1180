"""One request of a trace, whatever the format of the file."""

from collections.abc import Callable
from dataclasses import dataclass

# told the number of a line that is no request, and why
Malformed = Callable[[int, str], None]
CountTokens = Callable[[str], int]

BYTES_PER_TOKEN = 4  # of English text, nearly, in the vocabularies of today's models


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request, or one turn of a conversation."""

    arrival_s: float | None  # None: the trace has no times
    input_tokens: int  # without those of the turns before, where these are rows too
    output_tokens: int
    # of blocks of `hash_block_tokens` tokens; each stands also for all before it
    hash_ids: tuple[int, ...] = ()
    hash_block_tokens: int = 0
    prompt_ids: tuple[int, ...] = ()  # where the trace has them
    session: str | None = None  # rows of one conversation have the same


def approximate_tokens(text: str) -> int:
    """Tokens of a text, for want of the model's tokenizer: its UTF-8 bytes over 4."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
