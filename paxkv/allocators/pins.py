"""Prefixes that stay cached, whoever uses them: system prompts."""

from collections import Counter
from collections.abc import Callable

from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.cache_keys import token_bytes
from paxkv.events import EventKind
from paxkv.journal import Journal
from paxkv.prefix_cache import CacheNode, PrefixCache
from paxkv.request_options import RequestOptions

PIN = -1  # what events call the owner that a pin is


class Pins:
    """The cache as an owner of blocks. `owned[group]` counts the pins of each block."""

    def __init__(
        self,
        cache: PrefixCache,
        journal: Journal,
        root: Callable[[RequestOptions], CacheNode],
    ):
        """`root(options)`: where paths of requests with these options begin."""
        self.owned: list[Counter[int]] = [Counter() for _ in cache.pools]
        self._cache = cache
        self._journal = journal
        self._root = root

    def pin(self, tokens: tuple[int, ...], options: RequestOptions) -> int:
        """Makes the cache an owner of what it has of a prefix on the device, so that it
        stays; how many tokens these are. Pins add up.

        Raises:
          ValueError: a token id is no int32.
        """
        path = self._pinnable(tokens, options)
        for group, pool in enumerate(self._cache.pools):
            blocks = [node.blocks[group] for node in path if node.blocks[group]]
            pool.share(blocks)
            self.owned[group].update(blocks)
            self._journal.tell(EventKind.SHARE, group, blocks, PIN)
        return len(path) * self._cache.block_size

    def unpin(self, tokens: tuple[int, ...], options: RequestOptions) -> int:
        """Takes one pin from a prefix; how many tokens of it had one.

        Raises:
          ValueError: a token id is no int32.
        """
        path = self._pinnable(tokens, options)
        num_tokens = 0
        for group, pool in enumerate(self._cache.pools):
            blocks = [b for node in path if self.owned[group][b := node.blocks[group]] > 0]
            self.owned[group].subtract(blocks)
            self.owned[group] += Counter()  # without those at 0
            self._unshare(group, pool, blocks)
            num_tokens = max(num_tokens, len(blocks) * self._cache.block_size)
        return num_tokens

    def reset(self) -> int:
        """Forgets all prefixes and pins; how many blocks got free."""
        before = sum(pool.num_free for pool in self._cache.pools)
        self._cache.reset()
        for group, (pins, pool) in enumerate(
            zip(self.owned, self._cache.pools, strict=True)
        ):
            self._unshare(group, pool, list(pins.elements()))
            pins.clear()
        return sum(pool.num_free for pool in self._cache.pools) - before

    def _pinnable(
        self, tokens: tuple[int, ...], options: RequestOptions
    ) -> list[CacheNode]:
        path = self._cache.match(self._root(options), token_bytes(tokens), options.media)
        for index, node in enumerate(path):
            if NULL_BLOCK in node.blocks:
                return path[:index]
        return path

    def _unshare(self, group: int, pool: BlockPool, blocks: list[int]) -> None:
        """Takes pins away, one after the other."""
        for block in reversed(blocks):
            pool.free([block])
            self._journal.gave_up(group, pool, [block], PIN)
