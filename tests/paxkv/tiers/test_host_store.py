"""Slots keep bytes, and notice when the bytes change."""

import numpy as np
import psutil
import pytest

from paxkv.tiers.host_store import CorruptBlock, HostStore

BYTES = (24, 40)


def payload(num_blocks: int, group: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (num_blocks, BYTES[group]), np.uint8)


@pytest.mark.parametrize("checksums", [True, False])
def test_groups_have_their_own_slots(checksums):
    store = HostStore(4, BYTES, checksums=checksums)
    wide, narrow = payload(2, 1), payload(3, 0)
    store.write(1, [3, 0], wide)
    store.write(0, [0, 1, 3], narrow)
    np.testing.assert_array_equal(store.read(1, [0, 3, 0]), wide[[1, 0, 1]])
    np.testing.assert_array_equal(store.read(0, [3, 1, 0]), narrow[::-1])
    assert store.read(0, []).shape == (0, BYTES[0])
    assert store.nbytes == 4 * sum(BYTES)


def test_reads_are_copies():
    store = HostStore(1, BYTES)
    before = payload(1, 0)
    store.write(0, [0], before)
    read = store.read(0, [0])
    store.write(0, [0], payload(1, 0, seed=1))
    np.testing.assert_array_equal(read, before)


def test_a_flipped_byte_is_found_in_its_slot_alone():
    store = HostStore(3, BYTES)
    store.write(0, [0, 1, 2], payload(3, 0))
    store.slots(0)[1, 7] ^= 1
    with pytest.raises(CorruptBlock, match="host_slot=1 of group=0 does not match"):
        store.read(0, [0, 1, 2])
    assert [store.is_corrupt(0, slot) for slot in range(3)] == [False, True, False]
    np.testing.assert_array_equal(store.read(0, [2, 0]), payload(3, 0)[[2, 0]])
    assert store.read(0, [1], verified=True)[0, 7] == payload(3, 0)[1, 7] ^ 1
    store.write(0, [1], payload(1, 0))  # is right again
    assert not store.is_corrupt(0, 1)


def test_without_checksums_wrong_bytes_come_back():
    store = HostStore(1, BYTES, checksums=False)
    wanted = payload(1, 0)
    store.write(0, [0], wanted)
    store.slots(0)[0, 7] ^= 1
    wanted[0, 7] ^= 1
    np.testing.assert_array_equal(store.read(0, [0]), wanted)
    assert not store.is_corrupt(0, 0)


def test_slots_take_no_memory_until_written():
    process = psutil.Process()
    before = process.memory_info().rss
    store = HostStore(1 << 11, (1 << 20,))  # 2 GiB
    store.write(0, [2000], np.full((1, 1 << 20), 7, np.uint8))
    assert (store.read(0, [2000]) == 7).all()
    assert process.memory_info().rss - before < 1 << 28


def test_errors():
    store = HostStore(2, BYTES)
    assert not store.is_corrupt(0, 1)
    with pytest.raises(ValueError, match="host_slot=1 of group=0 was never written"):
        store.read(0, [1])
    with pytest.raises(ValueError, match=r"payload of shape \(1, 40\) must be \(1, 24\)"):
        store.write(0, [0], payload(1, 1))
    with pytest.raises(ValueError, match=r"host_slots=\[1, 1\] names one twice"):
        store.write(0, [1, 1], payload(2, 0))
    with pytest.raises(ValueError, match=r"host_slot=2 must be in \[0, 2\)"):
        store.write(0, [2], payload(1, 0))
    with pytest.raises(ValueError, match=r"host_slot=-1 must be in \[0, 2\)"):
        store.read(0, [-1])
    with pytest.raises(ValueError, match=r"group=2 must be in \[0, 2\)"):
        store.read(2, [0])
    with pytest.raises(ValueError, match="num_slots=0 and all of .* must be at least 1"):
        HostStore(0, BYTES)
    with pytest.raises(ValueError, match="lower the number of host slots"):
        HostStore(1 << 40, (1 << 20,))
