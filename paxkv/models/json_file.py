"""JSON files of a model, whose form is checked and whose damage is explained."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
      ValueError: it is not one.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{path} must hold a JSON object, holds {type(value).__name__}; download it "
            "again."
        )
    return value
