"""Names of blocks on disk: digests over the whole path from the root, at full width."""

import hashlib
from typing import Any


def child_digest(parent: bytes, key: Any) -> bytes:
    """SHA-256 of the parent's digest and a block's (or a root's) key, as its repr.

    Keys are bytes, or tuples of ints, strings and bytes, whose repr tells all of them
    apart.
    """
    return hashlib.sha256(parent + repr(key).encode()).digest()
