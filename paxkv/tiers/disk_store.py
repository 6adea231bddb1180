"""The disk tier: the bytes of blocks in files, under the digest of their key. No jax here.

A directory is usable after the process was killed at any point: a file appears whole, by
a rename, or not at all. What cannot be written is counted and not published; what cannot
be read, or is not what was written, is counted and not found.
"""

import os
import re
import time
import weakref
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from paxkv.tiers.block_file import DIGEST_BYTES, HEADER_BYTES, BlockHeader
from paxkv.tiers.store_folder import claim, explained

_NAME = re.compile(rf"([0-9a-f]{{{2 * DIGEST_BYTES}}})-(0|[1-9]\d*)\.(block|tmp)")

Key = tuple[bytes, int]  # digest, cache group


class DiskStore:
    """At most `max_bytes` of block files, headers included; the least recently used go.

    Uses count across restarts, by the files' modification times.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        max_bytes: int,
        identity: bytes,
        checksums: bool = True,
    ):
        """Opens a directory, or makes it below one that exists; keeps the blocks in it.

        Args:
          identity: digest of all that gives every block's bytes their meaning: the model's
            revision, the layout, the block size, the dtype.
          checksums: compare what is read with the CRC-32 of what was written. Without,
            wrong bytes are returned like right ones; a wrong header is always found.

        Raises:
          ValueError: the directory is of another identity, of something else, in use, or
            cannot be written. Nothing in it was changed.
        """
        if max_bytes < 1 or not identity:
            raise ValueError(
                f"{max_bytes=} must be at least 1 and {identity=} not empty; pass no disk "
                "store where there is no disk tier."
            )
        self.directory = Path(directory)
        self.max_bytes = max_bytes
        self.identity = identity
        self.checksums = checksums
        self.num_bytes = 0  # of block files
        self.num_corrupt = 0  # files that were discarded for what they hold
        self.num_failed = 0  # blocks that the disk did not take, or not give back
        self._file_bytes: OrderedDict[Key, int] = OrderedDict()  # least recent first
        self._last_use_ns = 0
        self._release = weakref.finalize(self, os.close, claim(self.directory, identity))
        try:
            with explained(self.directory):
                self._scan()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets other stores use the directory; this one must not be used any more."""
        self._release()

    @property
    def num_files(self) -> int:
        return len(self._file_bytes)

    def __contains__(self, key: Key) -> bool:
        """Whether there is a file for (digest, group); its bytes are not looked at."""
        return key in self._file_bytes

    def put(self, digest: bytes, group: int, payload: bytes) -> None:
        """Stores a block, unless it is there already; makes room for it.

        A block larger than `max_bytes` is refused, and what the disk does not take is
        counted in `num_failed`; neither is an error.
        """
        header = self._header(digest, group)
        key, nbytes = (digest, group), HEADER_BYTES + len(payload)
        if nbytes > self.max_bytes:
            return
        temporary = self._path(key, "tmp")
        try:
            if key in self._file_bytes:
                self._touch(key)
                return
            self._shrink_to(self.max_bytes - nbytes)
            with open(temporary, "wb") as file:
                file.write(header.pack(payload))
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path(key))
            self._file_bytes[key] = nbytes
            self.num_bytes += nbytes
            self._touch(key)
        except OSError:
            self.num_failed += 1
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def get(self, digest: bytes, group: int) -> bytes | None:
        """The bytes of a block; None: there is none, or not any more.

        A file that is not what was written is deleted, and counted in `num_corrupt`.
        """
        header = self._header(digest, group)
        key = (digest, group)
        if key not in self._file_bytes:
            return None
        try:
            file = self._path(key).read_bytes()
            payload = header.payload(file, self.checksums)
            if payload is None:
                self.num_corrupt += 1
                self._delete(key)
            else:
                self._touch(key)
            return payload
        except OSError:
            self.num_failed += 1
            self._forget(key)  # deleted by someone, or unreadable
            return None

    def _header(self, digest: bytes, group: int) -> BlockHeader:
        if len(digest) != DIGEST_BYTES or group < 0:
            raise ValueError(
                f"digest of {len(digest)} bytes and {group=} must be {DIGEST_BYTES} bytes "
                "and at least 0; use hashlib.sha256 or blake2b(digest_size=32)."
            )
        return BlockHeader(identity=self.identity, digest=digest, group=group)

    def _path(self, key: Key, suffix: str = "block") -> Path:
        digest, group = key
        return self.directory / f"{digest.hex()}-{group}.{suffix}"

    def _touch(self, key: Key) -> None:
        """Makes the block the most recently used, for later processes too."""
        self._file_bytes.move_to_end(key)
        self._last_use_ns = max(self._last_use_ns + 1, time.time_ns())
        os.utime(self._path(key), ns=(self._last_use_ns, self._last_use_ns))

    def _forget(self, key: Key) -> None:
        self.num_bytes -= self._file_bytes.pop(key)

    def _delete(self, key: Key) -> None:
        self._path(key).unlink(missing_ok=True)
        self._forget(key)

    def _shrink_to(self, max_bytes: int) -> None:
        while self.num_bytes > max_bytes:
            self._delete(next(iter(self._file_bytes)))

    def _scan(self) -> None:
        """Finds the blocks of earlier processes. Only names that we give are touched."""
        found: list[tuple[int, Key, int]] = []
        for entry in os.scandir(self.directory):
            match = _NAME.fullmatch(entry.name)
            if match is None or not entry.is_file(follow_symlinks=False):
                continue
            if match[3] == "tmp":
                os.unlink(entry.path)
                continue
            key = (bytes.fromhex(match[1]), int(match[2]))
            with open(entry.path, "rb") as file:
                start = file.read(HEADER_BYTES)
            info = entry.stat()
            payload_bytes = self._header(*key).payload_bytes(start)
            if payload_bytes is None or HEADER_BYTES + payload_bytes != info.st_size:
                self.num_corrupt += 1
                os.unlink(entry.path)
            else:
                found.append((info.st_mtime_ns, key, info.st_size))
        for used_ns, key, nbytes in sorted(found):
            self._file_bytes[key] = nbytes
            self.num_bytes += nbytes
            self._last_use_ns = used_ns
        self._shrink_to(self.max_bytes)
