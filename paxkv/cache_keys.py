"""What K/V depends on besides the tokens before it: the key that keeps requests apart.

Every part is tagged by its kind and kept at full width, so no adapter can be taken for a
salt and no digest for another.
"""

import array
from collections.abc import Sequence

from paxkv.request_options import Media, RequestOptions

Part = tuple[str | bytes | int, ...]  # (kind, value, ...)
# The token ids of a block as int32, 4 bytes each, since bytes are hashed and compared far
# faster than tuples; where media touch it, (those bytes, their tags).
BlockKey = bytes | tuple[bytes, tuple]
TOKEN_BYTES = 4


def isolation_key(model: tuple[Part, ...], options: RequestOptions) -> tuple[Part, ...]:
    """Requests share K/V only if this is equal; `model` is of the whole engine."""
    parts = list(model)
    if options.adapter is not None:
        parts.append(("adapter", options.adapter.name, options.adapter.version))
    if options.salt is not None:
        parts.append(("salt", options.salt))
    if options.position_offset:
        parts.append(("position offset", options.position_offset))
    return tuple(parts)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as int32, in native byte order.

    Raises:
      ValueError: one of them is no int32.
    """
    try:
        return array.array("i", tokens).tobytes()
    except OverflowError:
        wrong = next(token for token in tokens if not -(2**31) <= token < 2**31)
        raise ValueError(f"token id {wrong} is no int32; give ids of the model.") from None


def block_key(tokens: bytes, start: int, media: Sequence[Media]) -> BlockKey:
    """The key of the block whose tokens (as bytes) begin at position `start`.

    Media are placeholders in the tokens, so each block that one touches carries its digest
    and its span, counted from the block's first token.
    """
    if not media:
        return tokens
    end = start + len(tokens) // TOKEN_BYTES
    tags = tuple(
        (item.kind, item.digest, item.start - start, item.end - start)
        for item in media
        if item.start < end and start < item.end
    )
    return (tokens, tags) if tags else tokens
