"""Result rows: one JSON object a line, with all it takes to repeat the run."""

import errno
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import paxkv

SCHEMA_VERSION = 1  # raise it when a key of a row changes its name or its meaning
KINDS = ("measured", "simulated", "compiled", "computed")
PACKAGES = ("jax", "jaxlib", "numpy")
CHECKOUT = Path(__file__).resolve().parents[1]

Row = Mapping[str, Any]

_FREE_SPACE = "Free some space, or set another output folder."
_OWN_FOLDER = "Set an output folder that you may write to."
_NO_FILE = "Set an output folder whose path names no file."
_WHY_AND_REMEDY = {
    errno.ENOSPC: ("the disk is full", _FREE_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _FREE_SPACE),
    errno.EACCES: ("no permission to write", _OWN_FOLDER),
    errno.EPERM: ("no permission to write", _OWN_FOLDER),
    errno.EROFS: ("the file system is read-only", _OWN_FOLDER),
    errno.ENOTDIR: ("part of the path is a file", _NO_FILE),
    errno.EEXIST: ("part of the path is a file", _NO_FILE),
}


class ResultsNotWritten(OSError):
    """A file could not be written; the message names it, the cause and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What was run, on what, and how; the same in all rows of a run."""

    experiment: str
    kind: str  # one of KINDS
    command: str
    seed: int
    device: str
    implementation: str  # of the kernels
    matmul_precision: str
    xla_flags: str

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is refused: use one of {KINDS}.")


def _git(*arguments: str) -> str | None:
    """Output of git in the checkout; None if there is no git or no answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_state() -> dict[str, Any]:
    """Revision of the checkout and whether files differ from it; None outside of git.

    An installed package may lie inside somebody else's repository: that does not count.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != CHECKOUT:
        return {"revision": None, "dirty": None}
    changes = _git("status", "--porcelain")
    return {
        "revision": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def versions() -> dict[str, str | None]:
    """Of Python, of this package and of those that decide its numbers."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "paxkv": paxkv.__version__,
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def run_facts(info: RunInfo) -> dict[str, Any]:
    """The part of a row that is the same in all rows of a run."""
    return {
        "schema": SCHEMA_VERSION,
        **asdict(info),
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(),
        "versions": versions(),
    }


def _plain(value: Any) -> Any:
    """What JSON can say: no nan or infinity (they become null), no numpy."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # a numpy array or scalar
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_line(row: Row) -> str:
    """The row as one line of JSON, without the newline."""
    return json.dumps(_plain(row), allow_nan=False)


@contextmanager
def explained(path: Path) -> Generator[None, None, None]:
    """Turns an `OSError` inside the block into one that says what to do.

    Raises:
      ResultsNotWritten: with the path, the cause and the remedy.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ResultsNotWritten):
            raise
        why, remedy = _WHY_AND_REMEDY.get(
            error.errno or 0, (error.strerror or str(error), "Set another output folder.")
        )
        raise ResultsNotWritten(f"{path} was not written: {why}. {remedy}") from error


def prepare_folder(folder: Path) -> None:
    """Makes the folder and tries it, so that a run need not end to find it unusable.

    Raises:
      ResultsNotWritten: nothing can be written there.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(b"\n")
        finally:
            probe.unlink(missing_ok=True)


def rows_by(key: Callable[[Row], Hashable], path: Path | None) -> dict[Any, Row]:
    """Rows of an earlier run, the last of each key; none where there is no file.

    Raises:
      ValueError: the file holds something else than rows that have this key.
    """
    if path is None or not path.exists():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return {key(row): row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a file that this experiment wrote; name another."
        ) from error


def append_row(path: Path, row: Row) -> None:
    """Adds one line and waits until it is on the disk; the file has it whole or not.

    Raises:
      ResultsNotWritten: the line could not be written; the file is as it was.
    """
    line = (to_line(row) + "\n").encode()
    with explained(path), open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(line)
            if written != len(line):  # what a disk does that fills up within the line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def save_rows(
    path: Path, rows: Sequence[Row], fallback: Callable[[str], object] = print
) -> None:
    """Appends the rows to a file. Lines that do not get there go to `fallback` instead.

    Raises:
      ResultsNotWritten: after that.
    """
    for index, row in enumerate(rows):
        try:
            append_row(path, row)
        except ResultsNotWritten:
            for unsaved in rows[index:]:
                fallback(to_line(unsaved))
            raise


def cut_torn_line(path: Path) -> None:
    """Takes off the half row that a program killed within a write may leave at the end.

    Raises:
      ResultsNotWritten: the file could not be written.
    """
    if not path.exists():
        return
    with explained(path), open(path, "r+b") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        os.fsync(file.fileno())
