"""Moves on the device do what NumPy does with one after the other; bytes are counted."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.kv_blocks import KVBlocks
from pallas_kernels.layout import POOL_DTYPES, kv_layout
from paxkv.moves import CopyBlock, Load, Poison, Spill, SwapIn, SwapOut
from paxkv.tiers.disk_store import DiskStore
from paxkv.tiers.host_store import CorruptBlock, HostStore
from paxkv.transfers import Transfers

NUM_BLOCKS, BLOCK_SIZE, NUM_SLOTS = 10, 4, 6
DIGEST = bytes(range(32))
DTYPES = pytest.mark.parametrize("dtype", POOL_DTYPES)


@pytest.fixture(params=["xla", "cpu"])
def implementation(request) -> str:
    if request.param == "cpu":
        pytest.importorskip("numba")
    return request.param


def make_pools(dtype, platform="cpu", layers=(3, 2), latent=False) -> tuple[KVBlocks, ...]:
    """One pool a group, of distinct numbers."""
    heads, value_dim = (1, 16) if latent else (2, None)
    layout = kv_layout(heads, 24, dtype, platform, value_dim)
    shape = (NUM_BLOCKS, BLOCK_SIZE, layout.num_rows, 24)
    return tuple(
        KVBlocks.of_rows(layout, jax.random.normal(jax.random.key(n), (n, *shape)))
        for n in layers
    )


def make_transfers(cache, implementation, *, disk=None, delay_steps=0, checksums=True):
    """With a host store that fits, and a disk store in the folder `disk`."""
    sizes = tuple(p.num_layers * p.layout.bytes_per_block(BLOCK_SIZE) for p in cache)
    host = HostStore(NUM_SLOTS, sizes, checksums)
    if disk is not None:
        disk = DiskStore(disk, max_bytes=10**7, identity=b"test")
    return Transfers(implementation, host, disk, delay_steps=delay_steps)


def bytes_of(pool: KVBlocks) -> np.ndarray:
    """uint8 [N, bytes of a block]: what the model below works on; a copy."""
    leaves = [np.array(x) for x in jax.tree.leaves(pool)]
    leaves = [x.reshape(*x.shape[:2], -1).view(np.uint8).swapaxes(0, 1) for x in leaves]
    return np.concatenate([x.reshape(NUM_BLOCKS, -1) for x in leaves], axis=1)


def poison_bytes(pool: KVBlocks) -> np.ndarray:
    """Of one block."""
    dtype = pool.layout.dtype
    worst = np.array(127 if dtype == np.int8 else np.nan, dtype)
    count = pool.kv[:, 0].size
    scales = 0 if pool.scales is None else pool.scales[:, 0].size
    parts = np.full(count, worst), np.full(scales, np.nan, np.float32)
    return np.concatenate([part.view(np.uint8) for part in parts])


class Model:
    """Does one move after the other."""

    def __init__(self, cache: tuple[KVBlocks, ...]):
        self.pools = [bytes_of(pool) for pool in cache]
        self.poison = [poison_bytes(pool) for pool in cache]
        self.slots = {}
        self.disk = {}

    def run(self, moves) -> None:
        for move in moves:
            pool = self.pools[move.group]
            match move:
                case CopyBlock():
                    pool[move.dst] = pool[move.src]
                case SwapOut():
                    self.slots[move.group, move.host_slot] = pool[move.block].copy()
                case SwapIn():
                    pool[move.block] = self.slots[move.group, move.host_slot]
                case Load():
                    pool[move.block] = np.frombuffer(move.payload, np.uint8)
                case Poison():
                    pool[list(move.blocks)] = self.poison[move.group]
                case Spill():
                    content = self.slots[move.group, move.host_slot]
                    self.disk.setdefault((move.digest, move.group), content.tobytes())

    def check(self, cache: tuple[KVBlocks, ...], transfers: Transfers) -> None:
        """Compares all but the null blocks, whose content is never used."""
        transfers.flush()
        for pool, wanted in zip(cache, self.pools, strict=True):
            np.testing.assert_array_equal(bytes_of(pool)[1:], wanted[1:])
        for (group, slot), wanted in self.slots.items():
            np.testing.assert_array_equal(
                transfers.host_store.read(group, [slot])[0], wanted
            )
        for (digest, group), wanted in self.disk.items():
            assert transfers.disk_store.get(digest, group) == wanted


def check_moves(cache, transfers, *runs) -> tuple[KVBlocks, ...]:
    model = Model(cache)
    for moves in runs:
        model.run(moves)
        cache = transfers.run(cache, moves)
    model.check(cache, transfers)
    return cache


def some_of_each(cache) -> list:
    """Every kind in both groups, with numbers that differ between them."""
    payloads = [bytes_of(pool)[4].tobytes() for pool in cache]
    return [
        move
        for group in range(len(cache))
        for move in (
            CopyBlock(group=group, src=1, dst=2),
            CopyBlock(group=group, src=2, dst=3 + group),
            SwapOut(group=group, block=2, host_slot=5),
            SwapOut(group=group, block=9, host_slot=group),
            Poison(group=group, blocks=(2, 9)),
            SwapIn(group=group, host_slot=5, block=7),
            SwapIn(group=group, host_slot=group, block=8),
            Spill(group=group, host_slot=5, digest=DIGEST),
            Load(group=group, payload=payloads[group], block=6),
        )
    ]


@pytest.mark.parametrize(
    ("dtype", "latent"),
    [*((dtype, False) for dtype in POOL_DTYPES), ("bfloat16", True), ("int8", True)],
)
def test_every_kind_of_move(tmp_path, implementation, dtype, latent):
    cache = make_pools(dtype, latent=latent)
    transfers = make_transfers(cache, implementation, disk=tmp_path)
    check_moves(cache, transfers, some_of_each(cache))


@pytest.mark.parametrize(
    ("dtype", "platform"),
    [("bfloat16", "gpu"), ("float8_e4m3fn", "gpu"), ("float32", "tpu"), ("int8", "tpu")],
)
def test_layouts_of_accelerators_with_pinned_host_memory(tmp_path, dtype, platform):
    """Where jax offers such memory on a CPU, this takes the accelerators' way."""
    cache = make_pools(dtype, platform)
    transfers = make_transfers(cache, "xla", disk=tmp_path)
    check_moves(cache, transfers, some_of_each(cache))


def test_bytes_and_calls_are_counted(tmp_path):
    cache = make_pools("int8")
    transfers = make_transfers(cache, "xla", disk=tmp_path)
    sizes = [pool.num_layers * pool.layout.bytes_per_block(BLOCK_SIZE) for pool in cache]
    assert sizes == [bytes_of(pool).shape[1] for pool in cache]
    transfers.run(cache, some_of_each(cache))
    counts = transfers.counts
    assert (counts.copied_blocks, counts.poisoned_blocks) == (4, 4)
    assert counts.swapped_out_blocks == counts.swapped_in_blocks == 4
    assert counts.swapped_out_bytes == counts.swapped_in_bytes == 2 * sum(sizes)
    assert counts.spilled_blocks == counts.loaded_blocks == 2
    assert counts.spilled_bytes == counts.loaded_bytes == sum(sizes)
    # per group: two copies that depend on each other, out, poison, in, load
    assert (counts.device_calls, counts.swap_calls) == (12, 6)
    assert counts.calls_per_swapped_block == 6 / 10


MOVES = st.tuples(  # kind, group, block, and for a copy another block, else a slot
    st.sampled_from(["copy", "out", "out", "in", "in", "spill", "poison", "load"]),
    st.integers(0, 1),
    st.integers(1, 5),
    st.integers(1, 4),
)


def make_moves(drawn, sizes: list[int], written: set[tuple[int, int]]) -> list:
    """Moves that can be done: where one needs an empty slot, it fills it instead."""
    moves = []
    for kind, group, block, other in drawn:
        if kind in ("in", "spill") and (group, other) not in written:
            kind = "out"
        match kind:
            case "copy":
                moves.append(CopyBlock(group=group, src=block, dst=other))
            case "out":
                written.add((group, other))
                moves.append(SwapOut(group=group, block=block, host_slot=other))
            case "in":
                moves.append(SwapIn(group=group, block=block, host_slot=other))
            case "poison":
                moves.append(Poison(group=group, blocks=(block, other)))
            case "load":
                payload = bytes([other]) * sizes[group]
                moves.append(Load(group=group, block=block, payload=payload))
            case "spill":
                digest = bytes([len(written), len(moves)]) * 16
                moves.append(Spill(group=group, host_slot=other, digest=digest))
    return moves


@settings(max_examples=120)
@given(
    drawn_runs=st.lists(st.lists(MOVES, max_size=12), min_size=1, max_size=3),
    delay_steps=st.integers(0, 3),
)
def test_any_order_has_the_effect_of_one_after_the_other(
    tmp_path_factory, drawn_runs, delay_steps
):
    cache = make_pools("float32", layers=(2, 1))
    sizes = [bytes_of(pool).shape[1] for pool in cache]
    written = set()
    runs = [make_moves(drawn, sizes, written) for drawn in drawn_runs]
    folder = tmp_path_factory.mktemp("disk")
    transfers = make_transfers(cache, "xla", disk=folder, delay_steps=delay_steps)
    check_moves(cache, transfers, *runs)


def test_delayed_blocks_land_later_unless_needed():
    cache = make_pools("float32")
    transfers = make_transfers(cache, "xla", delay_steps=2)
    wanted = bytes_of(cache[0])
    cache = transfers.run(cache, [SwapOut(group=0, block=1, host_slot=0)])
    cache = transfers.run(cache, [SwapOut(group=0, block=2, host_slot=1)])
    with pytest.raises(ValueError, match="host_slot=0 of group=0 was never written"):
        transfers.host_store.read(0, [0])
    cache = transfers.run(cache, [Poison(group=0, blocks=(1, 2))])
    np.testing.assert_array_equal(transfers.host_store.read(0, [0]), wanted[[1]])
    with pytest.raises(ValueError, match="host_slot=1 of group=0 was never written"):
        transfers.host_store.read(0, [1])
    cache = transfers.run(
        cache,
        [
            SwapOut(group=0, block=3, host_slot=2),
            SwapIn(group=0, host_slot=1, block=5),
            SwapIn(group=0, host_slot=2, block=6),
        ],
    )
    np.testing.assert_array_equal(bytes_of(cache[0])[[5, 6]], wanted[[2, 3]])


@pytest.mark.parametrize("checksums", [True, False])
def test_a_flipped_byte_in_the_host_store(tmp_path, checksums):
    """Is found before anything moves; without checksums the wrong bytes come back."""
    cache = make_pools("float32")
    transfers = make_transfers(cache, "xla", disk=tmp_path, checksums=checksums)
    cache = transfers.run(
        cache, [SwapOut(group=0, block=block, host_slot=block) for block in (1, 2)]
    )
    transfers.host_store.slots(0)[1, 0] ^= 1
    back = [SwapIn(group=0, host_slot=slot, block=slot + 5) for slot in (1, 2)]
    spill = Spill(group=0, host_slot=1, digest=DIGEST)
    before = bytes_of(cache[0])
    if checksums:
        with pytest.raises(CorruptBlock, match="host_slot=1 of group=0"):
            transfers.run(cache, [CopyBlock(group=0, src=3, dst=4), *back])
        np.testing.assert_array_equal(bytes_of(cache[0]), before)  # not donated
        cache = transfers.run(cache, [back[1], spill])
        assert transfers.counts.corrupt_blocks == 1
        assert transfers.disk_store.num_files == transfers.counts.spilled_blocks == 0
    else:
        cache = transfers.run(cache, [*back, spill])
        assert (bytes_of(cache[0])[6] != before[1]).sum() == 1
        assert transfers.disk_store.num_files == 1
    np.testing.assert_array_equal(bytes_of(cache[0])[7], before[2])


def test_no_implicit_transfers(tmp_path):
    cache = make_pools("bfloat16")
    transfers = make_transfers(cache, "xla", disk=tmp_path)
    moves = some_of_each(cache)
    with jax.transfer_guard("disallow"):
        transfers.run(cache, moves)


@DTYPES
def test_poison_reads_as_nan(dtype):
    cache = make_pools(dtype)
    cache = make_transfers(cache, "xla").run(cache, [Poison(group=0, blocks=(4,))])
    rows = np.asarray(cache[0].rows(), np.float32)
    assert np.isnan(rows[:, 4]).all()
    assert np.isfinite(rows[:, [b for b in range(NUM_BLOCKS) if b != 4]]).all()


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (CopyBlock(group=2, src=1, dst=2), r"needs a group in \[0, 2\)"),
        (CopyBlock(group=0, src=0, dst=2), r"block 0 must be in \[1, 10\).*CopyBlock"),
        (Poison(group=0, blocks=(10,)), r"block 10 must be in \[1, 10\)"),
        (SwapOut(group=0, block=1, host_slot=6), r"slot 6 must be in \[0, 6\)"),
        (Load(group=0, block=1, payload=b"ab"), r"payload of 2 bytes must have .*block=1"),
        (Spill(group=0, host_slot=0, digest=DIGEST), "there is no disk store"),
    ],
)
def test_moves_that_cannot_be_done(move, message):
    cache = make_pools("float32")
    transfers = make_transfers(cache, "xla")
    first = CopyBlock(group=0, src=1, dst=2)
    with pytest.raises(ValueError, match=message):
        transfers.run(cache, [first, move])
    assert not cache[0].kv.is_deleted()


def test_stores_that_do_not_fit():
    cache = make_pools("float32")
    swap = SwapOut(group=1, block=1, host_slot=0)
    with pytest.raises(ValueError, match="there is no host store"):
        Transfers("xla", None, None).run(cache, [swap])
    for sizes in ((1, 2), (1,)):
        with pytest.raises(ValueError, match="Make the store for this cache"):
            Transfers("xla", HostStore(2, sizes), None).run(cache, [swap])
    with pytest.raises(ValueError, match="delay_steps=-1"):
        Transfers("xla", None, None, delay_steps=-1)
