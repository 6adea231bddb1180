import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paxkv.block_pool import BlockPool
from paxkv.cache_keys import token_bytes
from paxkv.policies.eviction import Lru
from paxkv.prefix_cache import PrefixCache
from paxkv.radix_tree import RadixTree, view_of

BLOCK_SIZE = 2
ROOT_ID = 0
TOKENS = st.lists(st.integers(0, 2), max_size=9).map(tuple)
WHOLE = st.lists(st.sampled_from([(0, 0), (0, 1), (1, 0)]), max_size=5)


def flat(blocks_of_tokens):
    return tuple(token for tokens in blocks_of_tokens for token in tokens)


class FlatIndex:
    """A dict by (id of the parent, tokens): the other way to find a prefix."""

    def __init__(self):
        self.ids = {}  # (parent id, tokens) -> id
        self.blocks, self.last_used, self.locks = {}, {}, {}  # by id
        self.tick = 0

    def path(self, tokens):
        node_id, path = ROOT_ID, []
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            key = (node_id, tokens[end - BLOCK_SIZE : end])
            if key not in self.ids:
                break
            node_id = self.ids[key]
            path.append(node_id)
        return path

    def match(self, tokens):
        self.tick += 1
        path = self.path(tokens)
        self.last_used.update(dict.fromkeys(path, self.tick))
        return [self.blocks[node_id] for node_id in path]

    def insert(self, tokens, blocks):
        found = len(self.match(tokens))
        path = self.path(tokens)
        node_id = path[-1] if path else ROOT_ID
        for index in range(found, len(blocks)):
            key = (node_id, tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
            node_id = self.ids[key] = blocks[index]  # blocks are never used again here
            self.blocks[node_id] = blocks[index]
            self.last_used[node_id], self.locks[node_id] = self.tick, 0
        return found

    def evictable(self):
        parents = {parent for parent, _ in self.ids}
        return [i for i in self.blocks if i not in parents and not self.locks[i]]

    def evict(self, block):
        """One block, which must be among those that were used least recently."""
        leaves = self.evictable()
        assert block in leaves
        assert self.last_used[block] == min(self.last_used[leaf] for leaf in leaves)
        (key,) = (key for key, node_id in self.ids.items() if node_id == block)
        del self.ids[key], self.blocks[block], self.last_used[block], self.locks[block]


class RadixEqualsFlat(RuleBasedStateMachine):
    """The same hits and the same order of eviction, whatever is asked."""

    def __init__(self):
        super().__init__()
        self.tree, self.index = RadixTree(BLOCK_SIZE), FlatIndex()
        self.locked = []  # (node, path in the index)
        self.next_block = 1

    @rule(keys=WHOLE)
    def insert(self, keys):
        tokens = flat(keys)
        blocks = list(range(self.next_block, self.next_block + len(keys)))
        self.next_block += len(keys)
        assert self.tree.insert(tokens, blocks) == self.index.insert(tokens, blocks)

    @rule(tokens=TOKENS)
    def match(self, tokens):
        assert self.tree.match(tokens) == self.index.match(tokens)

    @rule(tokens=TOKENS)
    def lock(self, tokens):
        node = self.tree.lock(tokens)
        self.index.match(tokens)
        path = self.index.path(tokens)
        for node_id in path:
            self.index.locks[node_id] += 1
        self.locked.append((node, path))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data):
        node, path = self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1)))
        self.tree.unlock(node)
        for node_id in path:
            self.index.locks[node_id] -= 1

    @rule(num_blocks=st.integers(0, 4))
    def evict(self, num_blocks):
        evictable = self.tree.evictable_size
        evicted = self.tree.evict_leaves(num_blocks)
        assert len(evicted) == min(num_blocks, evictable)
        for block in evicted:
            self.index.evict(block)

    @invariant()
    def sizes_agree(self):
        locks = self.index.locks.values()
        assert self.tree.protected_size == sum(1 for count in locks if count)
        assert self.tree.evictable_size == sum(1 for count in locks if not count)

    @invariant()
    def edges_are_well_formed(self):
        for node in self.tree.nodes():
            assert len(node.keys) == len(node.blocks) > 0
            assert node.parent.children[node.keys[0]] is node
            assert node.parent is self.tree.root or node.lock_ref <= node.parent.lock_ref


def test_hits_and_evictions_equal_those_of_a_flat_index():
    run_state_machine_as_test(RadixEqualsFlat)


def test_a_match_splits_the_edge_where_it_ends():
    tree = RadixTree(BLOCK_SIZE)
    assert tree.insert((1, 2, 3, 4, 5, 6), [7, 8, 9]) == 0
    assert [node.blocks for node in tree.nodes()] == [[7, 8, 9]]
    assert tree.match((1, 2, 3, 4, 5, 0)) == [7, 8]
    assert [node.blocks for node in tree.nodes()] == [[7, 8], [9]]
    assert tree.insert((1, 2, 3, 4, 0, 0), [7, 8, 5]) == 2
    assert sorted(node.blocks for node in tree.nodes()) == [[5], [7, 8], [9]]


def test_locks_survive_a_split_and_protect_the_path():
    tree = RadixTree(BLOCK_SIZE)
    tree.insert((1, 2, 3, 4), [7, 8])
    node = tree.lock((1, 2, 3, 4))
    assert tree.match((1, 2)) == [7]
    assert (tree.protected_size, tree.evictable_size) == (2, 0)
    assert tree.evict_leaves(2) == []
    tree.unlock(node)
    assert tree.evict_leaves(9) == [8, 7]
    with pytest.raises(ValueError, match="have no lock"):
        tree.unlock(node)


def test_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="block_size=0 is refused"):
        RadixTree(0)
    tree = RadixTree(BLOCK_SIZE)
    with pytest.raises(ValueError, match="3 tokens are not 1 blocks of 2"):
        tree.insert((1, 2, 3), [4])
    assert not list(tree.nodes())


# --- the view of a cache


def serve(cache, pool, tokens):
    path = cache.match(cache.root(()), token_bytes(tokens))
    held = [node.blocks[0] for node in path]
    pool.share(held)
    cache.use(path)
    fresh = pool.allocate(len(tokens) // BLOCK_SIZE - len(path))
    node = path[-1] if path else cache.root(())
    for index, block in enumerate(fresh, len(path)):
        key = tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
        node = cache.insert(node, token_bytes(key), BLOCK_SIZE)
        cache.attach(node, 0, block)
    return held + fresh


@given(
    served=st.lists(WHOLE.map(flat), max_size=10),
    owned=WHOLE.map(flat),
    questions=st.lists(TOKENS, max_size=8),
)
def test_a_view_has_the_hits_of_its_cache(served, owned, questions):
    pool = BlockPool(13)
    cache = PrefixCache([pool], Lru(), block_size=BLOCK_SIZE, windowed=[False])
    for tokens in served:
        pool.free(serve(cache, pool, tokens))
    serve(cache, pool, owned)
    root = cache.root(())
    tree = view_of(root, BLOCK_SIZE)
    assert tree.evictable_size == pool.num_idle
    assert tree.protected_size == len(owned) // BLOCK_SIZE
    assert tree.evictable_size + tree.protected_size == len(list(cache.nodes()))
    for tokens in questions:
        path = cache.match(root, token_bytes(tokens))
        assert tree.match(tokens) == [node.blocks[0] for node in path]


def test_a_view_joins_only_children_and_leaves_out_what_is_not_whole():
    pool = BlockPool(9)
    cache = PrefixCache([pool], Lru(), block_size=BLOCK_SIZE, windowed=[False])
    pool.free(serve(cache, pool, (1, 1, 2, 2, 3, 3)))
    (edge,) = view_of(cache.root(()), BLOCK_SIZE).nodes()
    assert edge.blocks == [1, 2, 3] and edge.lock_ref == 0
    last = cache.match(cache.root(()), token_bytes((1, 1, 2, 2, 3, 3)))[-1]
    partial = cache.insert(last, token_bytes((4,)), 1)
    (block,) = pool.allocate(1)
    cache.attach(partial, 0, block)
    assert [node.blocks for node in view_of(cache.root(()), BLOCK_SIZE).nodes()] == [
        [1, 2, 3]
    ]
    serve(cache, pool, (1, 1))
    blocks = [node.blocks for node in view_of(cache.root(()), BLOCK_SIZE).nodes()]
    assert blocks == [[1], [2, 3]]
