"""The host tier: the bytes of swapped and evicted blocks, in slots. No jax here.

Mechanism only: who owns which slot is the planner's business.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

_NEVER_WRITTEN = -1  # instead of a checksum


class CorruptBlock(Exception):
    """The bytes of a block are not those that were stored."""


class HostStore:
    """`num_slots` slots for each cache group, each as large as one block of the group.

    Memory is taken by the operating system when a slot is first written.
    """

    def __init__(
        self, num_slots: int, bytes_per_block: tuple[int, ...], checksums: bool = True
    ):
        """All slots are empty.

        Args:
          bytes_per_block: per cache group, of all its layers, scales included.
          checksums: compare what is read with the CRC-32 of what was written. Without,
            wrong bytes are returned like right ones.
        """
        if num_slots < 1 or not bytes_per_block or min(bytes_per_block) < 1:
            raise ValueError(
                f"{num_slots=} and all of {bytes_per_block=} must be at least 1; pass no "
                "host store where there is no host tier."
            )
        self.num_slots = num_slots
        self.bytes_per_block = bytes_per_block
        self.checksums = checksums
        try:
            self._slots = tuple(np.empty((num_slots, n), np.uint8) for n in bytes_per_block)
        except MemoryError:
            nbytes = num_slots * sum(bytes_per_block)
            raise ValueError(
                f"{num_slots=} of {sum(bytes_per_block):,} bytes take {nbytes:,} bytes, "
                "more than this machine gives; lower the number of host slots."
            ) from None
        self._checksums = tuple([_NEVER_WRITTEN] * num_slots for _ in bytes_per_block)

    @property
    def nbytes(self) -> int:
        """Of all slots, written or not."""
        return sum(slots.nbytes for slots in self._slots)

    def slots(self, group: int) -> UInt8[np.ndarray, "num_slots bytes_per_block"]:
        """The memory itself. To write here is to corrupt: for tests and fault modes."""
        return self._slots[group]

    def write(
        self, group: int, host_slots: Sequence[int], payload: UInt8[np.ndarray, "n bytes"]
    ) -> None:
        """Puts row i of `payload` into slot host_slots[i], whatever was there.

        Raises:
          ValueError: a payload of another shape, a slot that does not exist or is named
            twice. Nothing was written.
        """
        index = self._index(group, host_slots)
        expected = (len(index), self.bytes_per_block[group])
        if payload.shape != expected:
            raise ValueError(
                f"payload of shape {payload.shape} must be {expected}: a row for each "
                f"slot, of the bytes of a block of {group=}."
            )
        if len(set(index)) < len(index):
            raise ValueError(f"host_slots={index} names one twice; write it once.")
        self._slots[group][index] = payload
        for host_slot, row in zip(index, payload, strict=True):
            self._checksums[group][host_slot] = zlib.crc32(row) if self.checksums else 0

    def read(
        self, group: int, host_slots: Sequence[int], *, verified: bool = False
    ) -> UInt8[np.ndarray, "n bytes"]:
        """The bytes of the slots, a copy.

        Args:
          verified: the caller has asked `is_corrupt` already; do not check again.

        Raises:
          CorruptBlock: of the first slot whose bytes do not match their checksum.
          ValueError: a slot that does not exist or was never written.
        """
        index = self._index(group, host_slots)
        for host_slot in index:
            if self._checksums[group][host_slot] == _NEVER_WRITTEN:
                raise ValueError(
                    f"{host_slot=} of {group=} was never written; write it before."
                )
            if not verified and self.is_corrupt(group, host_slot):
                raise CorruptBlock(
                    f"{host_slot=} of {group=} does not match the checksum of what was "
                    "written; discard it and compute the block again."
                )
        return self._slots[group][index]

    def is_corrupt(self, group: int, host_slot: int) -> bool:
        """Whether what was written there has changed. Without checksums always False."""
        stored = self._checksums[group][host_slot]
        if not self.checksums or stored == _NEVER_WRITTEN:
            return False
        return zlib.crc32(self._slots[group][host_slot]) != stored

    def _index(self, group: int, host_slots: Sequence[int]) -> list[int]:
        if not 0 <= group < len(self._slots):
            raise ValueError(f"{group=} must be in [0, {len(self._slots)}).")
        index = list(host_slots)
        for host_slot in index:
            if not 0 <= host_slot < self.num_slots:
                raise ValueError(f"{host_slot=} must be in [0, {self.num_slots}).")
        return index
