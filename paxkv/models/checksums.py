"""Checksums of a checkpoint's weights, without which a flipped bit is a wrong weight."""

import hashlib
import json
from pathlib import Path

from paxkv.models.json_file import read_json

CHECKSUMS = "checksums.json"


def write_checksums(weights: Path) -> None:
    """Writes the checksum of every file in the folder `weights` beside that folder."""
    text = json.dumps(_checksums(weights), indent=2) + "\n"
    (weights.parent / CHECKSUMS).write_text(text, encoding="utf-8")


def check_checksums(weights: Path) -> None:
    """Compares the files in the folder `weights` with what was written.

    Raises:
      ValueError: a file was changed, is missing or was added (all are named), or there
        are no checksums.
    """
    path = weights.parent / CHECKSUMS
    if not path.is_file():
        raise ValueError(
            f"{weights.parent} has no {CHECKSUMS}, so it is damaged or incomplete; copy "
            "the checkpoint again or convert the model anew."
        )
    expected, found = read_json(path), _checksums(weights)
    problems = [f"{name} is missing" for name in expected.keys() - found.keys()]
    problems += [f"{name} does not belong" for name in found.keys() - expected.keys()]
    problems += [
        f"{name} was changed"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    if problems:
        raise ValueError(
            f"{weights.parent} is not what its {CHECKSUMS} says: "
            f"{', '.join(sorted(problems))}; copy the checkpoint again or convert the "
            "model anew."
        )


def _checksums(weights: Path) -> dict[str, str]:
    """SHA-256 by name relative to the checkpoint."""
    sums = {}
    for path in sorted(weights.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            sums[path.relative_to(weights.parent).as_posix()] = digest
    return sums
