"""Files come back whole or not at all, whatever happens to the process or to the disk."""

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paxkv.tiers.block_file import HEADER_BYTES
from paxkv.tiers.disk_store import DiskStore

IDENTITY = b"a model, a layout, a block size"
PAYLOAD_BYTES = 100
FILE_BYTES = HEADER_BYTES + PAYLOAD_BYTES


def digest(i: int) -> bytes:
    return hashlib.sha256(b"%d" % i).digest()


def payload(i: int) -> bytes:
    return hashlib.shake_128(b"%d" % i).digest(PAYLOAD_BYTES)


def open_store(directory: Path, max_files: int = 100, **options) -> DiskStore:
    options = dict(max_bytes=max_files * FILE_BYTES, identity=IDENTITY) | options
    return DiskStore(directory, **options)


def file_of(directory: Path, i: int, group: int = 0) -> Path:
    return directory / f"{digest(i).hex()}-{group}.block"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_groups_and_restarts(tmp_path):
    store = open_store(tmp_path / "store")
    store.put(digest(0), 0, payload(0))
    store.put(digest(0), 1, payload(1))
    store.put(digest(0), 1, payload(1))  # there already
    for _ in range(2):
        assert (digest(0), 1) in store and (digest(1), 0) not in store
        assert store.get(digest(0), 0) == payload(0)
        assert store.get(digest(0), 1) == payload(1)
        assert store.get(digest(1), 0) is None
        assert (store.num_files, store.num_bytes) == (2, 2 * FILE_BYTES)
        assert (store.num_corrupt, store.num_failed) == (0, 0)
        store.close()
        store = open_store(tmp_path / "store")


def test_least_recently_used_go_first_across_restarts(tmp_path):
    store = open_store(tmp_path, max_files=3)
    for i in range(3):
        store.put(digest(i), 0, payload(i))
    store.get(digest(0), 0)
    store.put(digest(1), 0, payload(1))
    store.close()
    store = open_store(tmp_path, max_files=3)
    store.put(digest(3), 0, payload(3))
    assert [(digest(i), 0) in store for i in range(4)] == [True, True, False, True]
    store.put(digest(4), 0, payload(4))
    assert [(digest(i), 0) in store for i in range(5)] == [False, True, False, True, True]
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.block"))
    assert on_disk == store.num_bytes == 3 * FILE_BYTES
    store.close()
    store = open_store(tmp_path, max_files=1)  # less than there is
    assert store.num_files == 1 and (digest(4), 0) in store


def test_too_large_a_block_is_refused_quietly(tmp_path):
    store = open_store(tmp_path, max_files=1)
    store.put(digest(0), 0, payload(0))
    store.put(digest(1), 0, payload(1) + b"x")
    assert (digest(0), 0) in store and (digest(1), 0) not in store
    assert store.num_failed == 0


@pytest.mark.parametrize(
    "position", [0, 10, 14, 17, 25, 40, 80, HEADER_BYTES, FILE_BYTES - 1]
)
def test_a_flipped_byte_discards_exactly_this_block(tmp_path, position):
    """In the magic, version, group, checksum, length, identity, digest and payload."""
    store = open_store(tmp_path)
    for i in range(3):
        store.put(digest(i), 0, payload(i))
    flip(file_of(tmp_path, 1), position)
    assert [store.get(digest(i), 0) for i in range(3)] == [payload(0), None, payload(2)]
    assert store.num_corrupt == 1
    assert not file_of(tmp_path, 1).exists()
    assert (store.num_files, store.num_bytes) == (2, 2 * FILE_BYTES)
    store.put(digest(1), 0, payload(1))
    assert store.get(digest(1), 0) == payload(1)


def test_without_checksums_wrong_bytes_come_back(tmp_path):
    store = open_store(tmp_path, checksums=False)
    store.put(digest(0), 0, payload(0))
    flip(file_of(tmp_path, 0), HEADER_BYTES)
    wrong = store.get(digest(0), 0)
    assert wrong is not None and wrong[1:] == payload(0)[1:] and wrong != payload(0)
    assert store.num_corrupt == 0
    store.close()
    store = open_store(tmp_path)  # the checksum was written all the same
    assert store.get(digest(0), 0) is None and store.num_corrupt == 1


def test_start_drops_what_cannot_be_right_and_touches_nothing_else(tmp_path):
    store = open_store(tmp_path)
    for i in range(4):
        store.put(digest(i), 0, payload(i))
    store.close()
    os.truncate(file_of(tmp_path, 0), FILE_BYTES - 1)
    os.truncate(file_of(tmp_path, 1), 5)
    shutil.copy(file_of(tmp_path, 2), file_of(tmp_path, 7))  # a name it does not belong to
    temporary = file_of(tmp_path, 8).with_suffix(".tmp")
    temporary.write_bytes(b"half")
    others = [tmp_path / "notes.txt", tmp_path / "x.tmp", tmp_path / "y-0.block"]
    for path in others:
        path.write_text("mine")
    link = file_of(tmp_path, 9)
    link.symlink_to(others[0])
    store = open_store(tmp_path)
    assert (store.num_files, store.num_corrupt) == (2, 3)
    assert store.get(digest(2), 0) == payload(2) and store.get(digest(3), 0) == payload(3)
    assert not temporary.exists() and link.is_symlink()
    assert all(path.read_text() == "mine" for path in others)


def test_a_file_that_vanished_is_not_found(tmp_path):
    store = open_store(tmp_path)
    store.put(digest(0), 0, payload(0))
    file_of(tmp_path, 0).unlink()
    assert store.get(digest(0), 0) is None
    assert (store.num_files, store.num_bytes, store.num_corrupt) == (0, 0, 0)
    assert store.num_failed == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_publishes_nothing(tmp_path, monkeypatch, call):
    store = open_store(tmp_path)
    store.put(digest(0), 0, payload(0))

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        store.put(digest(1), 0, payload(1))
    assert store.num_failed == 1 and (digest(1), 0) not in store
    assert len(list(tmp_path.glob("*.block"))) == 1 and not list(tmp_path.glob("*.tmp"))
    store.put(digest(1), 0, payload(1))
    assert store.get(digest(1), 0) == payload(1)


def test_directories_of_others_are_refused_and_left_alone(tmp_path):
    open_store(tmp_path / "ours").close()
    with pytest.raises(ValueError) as error:
        open_store(tmp_path / "ours", identity=b"another model")
    for part in (IDENTITY.hex(), b"another model".hex(), "name an empty or new directory"):
        assert part in str(error.value)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / file_of(foreign, 0).name).write_text("not ours")
    with pytest.raises(ValueError, match="no disk store of paxkv, so nothing in it"):
        open_store(foreign)
    assert [path.read_text() for path in foreign.iterdir()] == ["not ours"]


def test_a_directory_that_cannot_be_used(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below", tmp_path / "no" / "parent"):
        with pytest.raises(ValueError, match="cannot be used.*Name a directory"):
            open_store(path)
    assert not (tmp_path / "no").exists()


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="max_bytes=0 .*must be at least 1"):
        open_store(tmp_path / "store", max_files=0)
    store = open_store(tmp_path / "store")
    with pytest.raises(ValueError, match="digest of 3 bytes .* must be 32 bytes"):
        store.put(b"abc", 0, payload(0))


def test_a_crash_before_the_marker_leaves_a_usable_directory(tmp_path):
    (tmp_path / "paxkv-store.lock").touch()
    (tmp_path / "paxkv-store.tmp").write_text("half")
    open_store(tmp_path).put(digest(0), 0, payload(0))
    assert open_store(tmp_path).get(digest(0), 0) == payload(0)  # the first one is gone


WRITER = textwrap.dedent(
    """
    import hashlib, itertools, sys
    from paxkv.tiers.disk_store import DiskStore
    store = DiskStore(sys.argv[1], max_bytes=20_000_000, identity=sys.argv[2].encode())
    for i in itertools.count():
        key = hashlib.sha256(b"%d" % i)
        store.put(key.digest(), 0, key.digest() * 20_000)
        print(i, flush=True)
    """
)


def start_writer(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), IDENTITY.decode()],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_process_at_a_time(tmp_path):
    with start_writer(tmp_path) as writer:
        try:
            writer.stdout.readline()
            with pytest.raises(ValueError, match="in use by another disk store"):
                open_store(tmp_path)
        finally:
            writer.kill()
    open_store(tmp_path)


@pytest.mark.parametrize("num_written", [1, 7, 40])
def test_killed_while_writing(tmp_path, num_written):
    """`kill -9` at some point of a write, also while older files make room."""
    with start_writer(tmp_path) as writer:
        for _ in range(num_written):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    store = open_store(tmp_path, max_bytes=20_000_000)
    assert store.num_corrupt == 0 and (digest(last), 0) in store
    assert not list(tmp_path.glob("*.tmp"))
    found = [i for i in range(last + 2) if (digest(i), 0) in store]
    assert all(store.get(digest(i), 0) == digest(i) * 20_000 for i in found)
    assert store.num_files == len(found) and store.num_corrupt == 0
    assert store.num_bytes == sum(p.stat().st_size for p in tmp_path.glob("*.block"))
