"""Rows of earlier runs: what can be reported, what failed, and lines that are no rows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paxkv.results import KINDS, SCHEMA_VERSION, Row

ROWS_FILE = "rows.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRows:
    """Rows in the order of their files; a line that occurs twice is taken once."""

    rows: tuple[Row, ...]
    failed: tuple[Row, ...]  # of runs that ended with an error
    malformed: tuple[str, ...]  # where and why, of each line that is no row
    paths: tuple[Path, ...]  # the files


def rows_files(arguments: Iterable[str | Path]) -> list[Path]:
    """The files of rows that the arguments name: files, and folders that hold them.

    Raises:
      ValueError: an argument is neither, or a folder without rows.
    """
    files: dict[Path, None] = {}
    for argument in arguments:
        path = Path(argument)
        if path.is_file():
            files[path] = None
            continue
        if not path.is_dir():
            raise ValueError(
                f"{path} is neither a file nor a folder; name a {ROWS_FILE} or its folder."
            )
        own = path / ROWS_FILE
        found = [own] if own.is_file() else sorted(path.rglob(ROWS_FILE))
        if not found:
            raise ValueError(
                f"{path} holds no {ROWS_FILE}; name the output_folder of a run, or a file."
            )
        files.update(dict.fromkeys(found))
    return list(files)


def load_rows(arguments: Sequence[str | Path]) -> LoadedRows:
    """Reads the rows of files and folders.

    Raises:
      ValueError: see `rows_files`; or a row is of another schema.
      OSError: a file cannot be read.
    """
    paths = rows_files(arguments)
    rows: list[Row] = []
    failed: list[Row] = []
    malformed: list[str] = []
    seen: set[str] = set()
    for path in paths:
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line in seen:
                continue
            seen.add(line)
            try:
                row = _row(line)
            except ValueError as error:
                malformed.append(f"{path}:{number} {error}")
                continue
            if row["schema"] != SCHEMA_VERSION:
                raise ValueError(
                    f"{path}:{number} is a row of schema {row['schema']}, this version "
                    f"reads schema {SCHEMA_VERSION}; run it again, or report it with the "
                    "version that wrote it."
                )
            if row.get("status") == "failed":
                failed.append(row)
            elif row.get("kind") in KINDS:
                rows.append(row)
            else:
                kind = row.get("kind")
                malformed.append(f"{path}:{number} has {kind=}; a row has one of {KINDS}.")
    return LoadedRows(
        rows=tuple(rows),
        failed=tuple(failed),
        malformed=tuple(malformed),
        paths=tuple(paths),
    )


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error}).") from error
    if not isinstance(row, dict) or "schema" not in row:
        raise ValueError("is no row: it has no schema.")
    return row


def value_at(row: Row, path: str) -> Any:
    """What a row has at a dotted path; None where it has nothing."""
    value: Any = row
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def number_at(row: Row, path: str) -> float | None:
    """The same, if it is a number."""
    value = value_at(row, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def name_of(row: Row) -> str:
    """What the run was called."""
    return str(row.get("name") or row.get("system") or row.get("experiment"))


def place_of(row: Row) -> str:
    """Kind, device and cost profile in words."""
    profile = row.get("profile")
    told = f", {profile} profile" if profile and profile != row["kind"] else ""
    return f"{row['kind']} on {row.get('device')}{told}"


def failure_text(row: Row) -> str:
    """The run and its error, in a line."""
    cell = row.get("cell")
    which = ", ".join(f"{k}={v}" for k, v in cell.items()) if cell else name_of(row)
    error = str(row.get("error") or "it left no error").strip().splitlines()[-1]
    return f"{which}, seed {row.get('seed', '-')}: {error}"
