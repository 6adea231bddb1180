"""A directory that one process at a time uses as a disk store, and no one else's files."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paxkv.tiers.block_file import FORMAT_VERSION

MARKER = "paxkv-store"  # says whose directory it is
LOCK = "paxkv-store.lock"
NEW_MARKER = "paxkv-store.tmp"

_FIRST_LINE = "blocks of paxkv's disk tier"
_OTHER_DIRECTORY = "name an empty or new directory"


def claim(directory: Path, identity: bytes) -> int:
    """Takes the directory for this process, and marks it if it is new or empty.

    Returns:
      A file descriptor; closing it, as the end of the process does, lets others claim.

    Raises:
      ValueError: the directory cannot be written, belongs to another identity or to
        something else than a disk store, or another process has it.
    """
    with explained(directory):
        directory.mkdir(exist_ok=True)
        _require_ours(directory)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(lock, directory)
            _mark(directory, identity)
        except BaseException:
            os.close(lock)
            raise
    return lock


@contextmanager
def explained(directory: Path) -> Generator[None, None, None]:
    """Turns an `OSError` inside the block into a ValueError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the disk store {directory} cannot be used: {error.strerror or error}. Name a "
            "directory that you may write to and whose parent exists."
        ) from error


def _require_ours(directory: Path) -> None:
    """An empty directory passes, and one that a crash left before it was marked."""
    names = set(os.listdir(directory))
    if MARKER not in names and (others := names - {LOCK, NEW_MARKER}):
        raise ValueError(
            f"{directory} holds {min(others)!r} and no {MARKER!r}: it is no disk store of "
            f"paxkv, so nothing in it will be touched; {_OTHER_DIRECTORY}."
        )


def _lock(lock: int, directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{directory} is in use by another disk store, maybe of another process; stop "
            "that one, or give each its own directory."
        ) from None


def _mark(directory: Path, identity: bytes) -> None:
    """Writes the marker, or checks that it says the same."""
    marker = directory / MARKER
    wanted = [_FIRST_LINE, f"format {FORMAT_VERSION}", f"identity {identity.hex()}"]
    if not marker.exists():
        new = directory / NEW_MARKER
        with open(new, "w", encoding="ascii") as file:
            file.write("\n".join([*wanted, ""]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, marker)
        return
    found = marker.read_text(encoding="ascii", errors="replace").splitlines()
    if found != wanted:
        raise ValueError(
            f"{directory} was made with {found[1:]}, this run needs {wanted[1:]}: another "
            f"model, layout, block size or dtype, so its blocks are of no use here; "
            f"{_OTHER_DIRECTORY}, or delete that one."
        )
