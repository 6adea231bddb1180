"""Which idle block goes, by itself: nodes without a cache around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.idle_blocks import IdleBlocks
from paxkv.policies.eviction import Fifo, Lru
from paxkv.prefix_cache import CacheNode


class Forest:
    """Nodes of two groups and the idle blocks of one; `evicted` in order."""

    def __init__(self, policy=None, *, leaves_first=True, group=0):
        self.root = CacheNode(0, None, (), num_groups=2, num_tokens=0, created=0)
        self.group = group
        self.evicted = []
        self.idle = IdleBlocks(
            group, policy or Lru(), self.give_up, leaves_first=leaves_first
        )

    def give_up(self, node, group):
        assert group == self.group
        self.idle.take(node)
        self.evicted.append(node.node_id)

    def node(self, node_id, parent=None, *, last_used=None, **fields):
        parent = parent or self.root
        node = CacheNode(
            node_id, parent, (node_id,), num_groups=2, num_tokens=4, created=node_id
        )
        node.last_used = node_id if last_used is None else last_used
        for name, value in fields.items():
            setattr(node, name, value)
        parent.children[node.key] = node
        return node

    def path(self, *node_ids):
        nodes, parent = [], None
        for node_id in node_ids:
            parent = self.node(node_id, parent)
            nodes.append(parent)
        return nodes

    def release(self, path):
        """As an allocator frees a sequence: the last block first."""
        for node in reversed(path):
            self.idle.add([node])


def test_the_smallest_rank_goes_first():
    forest = Forest()
    forest.release([forest.node(i, last_used=used) for i, used in ((1, 9), (2, 4), (3, 7))])
    forest.idle.evict(2)
    assert forest.evicted == [2, 3]
    assert forest.idle.num_idle == 1


def test_leaves_go_before_what_they_hang_from():
    forest = Forest()
    forest.release(forest.path(1, 2, 3))  # by rank alone the root's child would go first
    forest.idle.evict(2)
    assert forest.evicted == [3, 2]
    forest.idle.evict(1)
    assert forest.evicted == [3, 2, 1]


def test_a_branch_keeps_its_head_until_all_its_tails_are_gone():
    forest = Forest()
    head, tail = forest.path(1, 2)
    other = forest.node(3, head, last_used=50)
    forest.release([head, tail, other])
    forest.release([forest.node(4, last_used=40)])
    forest.idle.evict(4)
    assert forest.evicted == [2, 4, 3, 1]


def test_where_hits_may_have_gaps_rank_alone_counts():
    forest = Forest(leaves_first=False)
    forest.release(forest.path(1, 2, 3))
    forest.idle.evict(2)
    assert forest.evicted == [1, 2]


def test_an_owned_child_does_not_protect_its_parent():
    """An owner of a child owns the parent; where it does not, no hit would be lost."""
    forest = Forest()
    head, _ = forest.path(1, 2)
    forest.idle.add([head])
    forest.idle.evict(1)
    assert forest.evicted == [1]


def test_what_was_taken_is_not_evicted_and_comes_back_with_its_new_rank():
    forest = Forest()
    first, second = forest.node(1), forest.node(2)
    forest.release([first, second])
    forest.idle.take(first)  # a hit
    assert not first.is_idle[0]
    assert forest.idle.num_idle == 1
    first.last_used = 10
    forest.idle.add([first])
    forest.idle.evict(2)
    assert forest.evicted == [2, 1]


def test_taking_a_tail_offers_its_head_again():
    forest = Forest()
    path = forest.path(1, 2)
    forest.release(path)
    forest.idle.take(path[1])
    forest.idle.evict(1)
    assert forest.evicted == [1]


def test_taking_twice_is_a_mistake():
    forest = Forest()
    node = forest.node(1)
    forest.idle.add([node])
    forest.idle.take(node)
    with pytest.raises(AssertionError, match="taken twice"):
        forest.idle.take(node)


def test_more_than_are_idle_cannot_be_evicted():
    forest = Forest()
    forest.idle.add([forest.node(1)])
    with pytest.raises(AssertionError, match="2 to evict of 1 idle blocks"):
        forest.idle.evict(2)
    assert forest.evicted == []


def test_groups_do_not_see_each_other():
    forest = Forest(group=1)
    head, tail = forest.path(1, 2)
    head.is_idle[0], head.num_idle_children[0] = True, 1  # as group 0 has it
    forest.release([head, tail])
    assert (head.is_idle, tail.is_idle) == ([True, True], [False, True])
    assert head.num_idle_children == [1, 1]
    forest.idle.evict(2)
    assert forest.evicted == [2, 1]
    assert head.is_idle == [True, False]


def test_a_duration_counts_from_the_release():
    forest = Forest()
    brief, lasting = forest.node(1, duration_s=5.0), forest.node(2)
    forest.idle.now_s = 100.0
    forest.release([brief, lasting])
    assert (brief.expires_s, lasting.expires_s) == (105.0, None)
    forest.idle.take(brief)
    forest.idle.now_s = 103.0
    forest.idle.add([brief])
    assert brief.expires_s == 108.0


class Protecting:
    """Nodes go last until they expire."""

    def __init__(self, ages):
        self.ages = ages

    def rank(self, node, now_s):
        return (node.expires_s is not None and now_s < node.expires_s, node.last_used)


@pytest.mark.parametrize(
    ("ages", "now_s", "evicted"), [(True, 4.9, [2]), (True, 5.0, [1]), (False, 5.0, [2])]
)
def test_ranks_that_change_with_time_are_taken_anew(ages, now_s, evicted):
    forest = Forest(Protecting(ages))
    forest.release([forest.node(1, duration_s=5.0), forest.node(2)])
    forest.idle.now_s = now_s
    forest.idle.evict(1)
    assert forest.evicted == evicted


def test_ties_go_in_the_order_of_release():
    forest = Forest(Fifo())
    nodes = [forest.node(i, last_used=1) for i in (1, 2, 3)]
    for node in nodes:
        node.created = 7
    for node in (nodes[1], nodes[2], nodes[0]):
        forest.idle.add([node])
    forest.idle.evict(3)
    assert forest.evicted == [2, 3, 1]


def test_outdated_entries_do_not_pile_up():
    forest = Forest()
    node = forest.node(1)
    for _ in range(10_000):
        forest.idle.add([node])
        forest.idle.take(node)
    assert len(forest.idle._heap) < 100


@given(st.data(), st.booleans())
def test_evictions_are_those_of_a_plain_search(data, leaves_first):
    """Against a search of all idle nodes, under random releases and hits."""
    forest = Forest(leaves_first=leaves_first)
    nodes = []
    for i in range(1, data.draw(st.integers(1, 12)) + 1):
        parent = data.draw(st.sampled_from([None, *nodes]))
        nodes.append(forest.node(i, parent, last_used=data.draw(st.integers(0, 5))))
    tick = 10
    for _ in range(data.draw(st.integers(0, 40))):
        node = data.draw(st.sampled_from(nodes))
        if node.is_idle[0]:
            if data.draw(st.booleans()):
                forest.idle.take(node)
                tick += 1
                node.last_used = tick
            else:
                idle = [one for one in nodes if one.is_idle[0]]
                offered = [
                    one
                    for one in idle
                    if not leaves_first
                    or not any(child.is_idle[0] for child in one.children.values())
                ]
                forest.idle.evict(1)
                victim = nodes[forest.evicted[-1] - 1]
                assert victim in offered
                assert victim.last_used == min(one.last_used for one in offered)
        else:
            forest.idle.add([node])
        assert forest.idle.num_idle == sum(one.is_idle[0] for one in nodes)
        for one in nodes:
            count = sum(child.is_idle[0] for child in one.children.values())
            assert one.num_idle_children[0] == count
