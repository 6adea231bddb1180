"""A prefix cache with pools of its own, and no request around it."""

from paxkv.block_pool import NULL_BLOCK, BlockPool
from paxkv.cache_keys import TOKEN_BYTES, token_bytes
from paxkv.invariants import _check_tree
from paxkv.journal import Journal
from paxkv.policies.eviction import Lru
from paxkv.prefix_cache import PrefixCache

SIZE = 4  # tokens of a block
A, B, C, D = (token_bytes((i, i + 1, i + 2, i + 3)) for i in (10, 20, 30, 40))


class Filled:
    """`put`, `hit` and `evict` do to the cache what an allocator does; after each the tree
    is whole."""

    def __init__(self, num_blocks=9, policy=None, windowed=(False,), **settings):
        self.events = []
        self.journal = settings.pop("journal", Journal(self.events.append))
        self.pools = [BlockPool(num_blocks) for _ in windowed]
        self.cache = PrefixCache(
            self.pools,
            policy or Lru(),
            block_size=SIZE,
            windowed=windowed,
            journal=self.journal,
            **settings,
        )
        self.root = self.cache.root(())

    def put(self, *keys, root=None):
        """Computes what is not cached yet of a path, and releases it; its nodes."""
        node, path, owned = root or self.root, [], [[] for _ in self.pools]
        for key in keys:
            tokens = key[0] if isinstance(key, tuple) else key
            node = self.cache.insert(node, key, len(tokens) // TOKEN_BYTES)
            path.append(node)
            for group, pool in enumerate(self.pools):
                if node.blocks[group] == NULL_BLOCK:
                    blocks = pool.allocate(1)
                    self.cache.attach(node, group, blocks[0])
                else:
                    pool.share(blocks := [node.blocks[group]])
                owned[group] += blocks
        for pool, blocks in zip(self.pools, owned, strict=True):
            pool.free(blocks)
        _check_tree(self.cache)
        return path

    def hit(self, *keys):
        """Uses and releases the path, as a request that needs no more would."""
        path = self.found(*keys)
        self.cache.use(path)
        for group, pool in enumerate(self.pools):
            blocks = [node.blocks[group] for node in path]
            pool.share(blocks)
            pool.free(blocks)
        return len(path)

    def found(self, *keys, media=()):
        return self.cache.match(self.root, b"".join(keys), media)

    def evict(self, count):
        """Allocates and frees so many blocks beyond the free ones; keys that are lost."""
        before = {node.node_id: node.key for node in self.cache.nodes()}
        pool = self.pools[0]
        pool.free(pool.allocate(pool.num_free + count))
        _check_tree(self.cache)
        left = {node.node_id for node in self.cache.nodes()}
        return {key for node_id, key in before.items() if node_id not in left}
