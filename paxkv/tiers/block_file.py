"""The file of one block in the disk tier: a header, then its bytes."""

import hashlib
import struct
import zlib
from dataclasses import dataclass

FORMAT_VERSION = 1
DIGEST_BYTES = 32

_MAGIC = b"paxkvblk"
# magic, format version, cache group, CRC-32 of the payload, payload bytes,
# digest of the store's identity, digest of the block's key
_HEADER = struct.Struct("<8sIIIQ32s32s")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """What a file must say to be taken for the block that its name promises."""

    identity: bytes  # of the store, any length
    digest: bytes  # DIGEST_BYTES
    group: int

    def pack(self, payload: bytes) -> bytes:
        """The header in front of this payload."""
        return self._header(zlib.crc32(payload), len(payload))

    def payload_bytes(self, header: bytes) -> int | None:
        """What the file holds behind its header; None: it is not a header of this block."""
        if len(header) < HEADER_BYTES:
            return None
        _, _, _, checksum, nbytes, _, _ = _HEADER.unpack_from(header)
        return nbytes if header[:HEADER_BYTES] == self._header(checksum, nbytes) else None

    def payload(self, file: bytes, checksums: bool) -> bytes | None:
        """The bytes of the block; None: the file is not what was written.

        Args:
          checksums: without, only the header and the length are looked at.
        """
        payload = file[HEADER_BYTES:]
        if self.payload_bytes(file) != len(payload):
            return None
        if checksums and file[:HEADER_BYTES] != self.pack(payload):
            return None
        return payload

    def _header(self, checksum: int, nbytes: int) -> bytes:
        identity = hashlib.blake2b(self.identity, digest_size=DIGEST_BYTES).digest()
        return _HEADER.pack(
            _MAGIC, FORMAT_VERSION, self.group, checksum, nbytes, identity, self.digest
        )
