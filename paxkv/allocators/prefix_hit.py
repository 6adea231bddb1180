"""What of a request's tokens the caches hold, and where. Takes nothing; only the disk tier
reads, and counts a use, as it looks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paxkv.block_pool import NULL_BLOCK
from paxkv.cache_keys import TOKEN_BYTES, BlockKey, block_key
from paxkv.prefix_cache import CacheNode, PrefixCache
from paxkv.request_options import Media
from paxkv.tiers.disk_keys import child_digest
from paxkv.tiers.disk_store import DiskStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBlock:
    """A block below the path that only the disk has: its key and its bytes per group."""

    key: BlockKey
    digest: bytes
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Whole blocks from the root, then perhaps the beginning of one more."""

    root: CacheNode
    path: list[CacheNode]
    first: tuple[int, ...]  # per group: index of the first block that is still in a window
    disk: tuple[DiskBlock, ...] = ()
    part: tuple[CacheNode, int] | None = None  # (node, its tokens that match)
    num_tokens: int = 0

    @classmethod
    def nothing(cls, root: CacheNode, num_groups: int) -> "Hit":
        return cls(root=root, path=[], first=(0,) * num_groups)

    def without_part(self) -> "Hit":
        """Whole blocks only."""
        if self.part is None:
            return self
        return replace(self, part=None, num_tokens=self.num_tokens - self.part[1])

    def device_blocks(self, group: int) -> list[int]:
        """Those that can be shared as they are, nearest to the root first."""
        nodes = self.path[self.first[group] :]
        return [block for node in nodes if (block := node.blocks[group]) != NULL_BLOCK]


def find_hit(
    cache: PrefixCache,
    root: CacheNode,
    tokens: bytes,
    windows: Sequence[int | None],
    *,
    media: Sequence[Media] = (),
    disk: DiskStore | None = None,
) -> Hit:
    """The longest prefix of `tokens` (`token_bytes`) whose K/V can be had; of windowed
    groups only the blocks that the next position sees must be there."""
    size, count = cache.block_size, len(tokens) // TOKEN_BYTES
    path = cache.match(root, tokens, media)
    if cache.host is not None:  # else each node has a block, or is in no full group
        path = _present(cache, path, windows)
    first = _first_seen(len(path), count, windows, size)
    while path and any(cache.windowed) and not _window_is_present(cache, path, first):
        path.pop()
        first = _first_seen(len(path), count, windows, size)
    found: tuple[DiskBlock, ...] = ()
    if disk is not None and cache.host is not None:
        found = _on_disk(
            disk, path[-1] if path else root, tokens, media, size, len(windows)
        )
        if found:
            first = (0,) * len(windows)  # K/V from disk come whole
            if not _window_is_present(cache, path, first):
                found, first = (), _first_seen(len(path), count, windows, size)
    num_tokens = (len(path) + len(found)) * size
    part = None
    if cache.by_token and not found and num_tokens < count - 1:
        part = _part(cache, path[-1] if path else root, tokens, num_tokens, media)
        if part is not None and not all(
            cache.is_present(part[0], group) for group in range(len(windows))
        ):
            part = None
    return Hit(
        root=root,
        path=path,
        first=first,
        disk=found,
        part=part,
        num_tokens=num_tokens + (part[1] if part else 0),
    )


def _present(
    cache: PrefixCache, path: list[CacheNode], windows: Sequence[int | None]
) -> list[CacheNode]:
    """The path up to the first node that a group without a window lacks."""
    for group, window in enumerate(windows):
        if window is not None:
            continue
        for index, node in enumerate(path):
            if not node.blocks[group] and not cache.is_present(node, group):
                path = path[:index]
                break
    return path


def _first_seen(
    num_blocks: int, num_tokens: int, windows: Sequence[int | None], size: int
) -> tuple[int, ...]:
    """Per group, the block with the first position that the next token to compute sees."""
    position = min(num_blocks * size, num_tokens - 1)
    return tuple(
        0 if window is None else max(position - window + 1, 0) // size for window in windows
    )


def _window_is_present(
    cache: PrefixCache, path: list[CacheNode], first: tuple[int, ...]
) -> bool:
    return all(
        cache.is_present(node, group)
        for group, index in enumerate(first)
        if cache.windowed[group]
        for node in path[index:]
    )


def _on_disk(
    disk: DiskStore,
    node: CacheNode,
    tokens: bytes,
    media: Sequence[Media],
    size: int,
    num_groups: int,
) -> tuple[DiskBlock, ...]:
    """Blocks below `node`, read and verified; a corrupt one ends the path."""
    found: list[DiskBlock] = []
    digest = node.digest
    step = size * TOKEN_BYTES
    for start in range(node.depth * step, len(tokens) - step + 1, step):
        key = block_key(tokens[start : start + step], start // TOKEN_BYTES, media)
        digest = child_digest(digest, key)
        if not all((digest, group) in disk for group in range(num_groups)):
            break
        payloads = [disk.get(digest, group) for group in range(num_groups)]
        whole = tuple(payload for payload in payloads if payload is not None)
        if len(whole) < num_groups:
            break
        found.append(DiskBlock(key=key, digest=digest, payloads=whole))
    return tuple(found)


def _part(
    cache: PrefixCache,
    node: CacheNode,
    tokens: bytes,
    start: int,
    media: Sequence[Media],
) -> tuple[CacheNode, int] | None:
    end = min(start + cache.block_size, len(tokens) // TOKEN_BYTES - 1)
    if any(item.start < end and start < item.end for item in media):
        return None  # what media touch is compared whole
    return cache.match_within(node, tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
