"""The safetensors of a Hugging Face directory, in one file or by an index."""

import contextlib
import re
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401 - gives numpy the bfloat16 that safetensors asks it for
import numpy as np
from safetensors import SafetensorError, safe_open

from paxkv.models.json_file import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD = re.compile(r"[^/\\\0]+\.safetensors")  # in the same folder
# Modules that enclose the decoder, in the spellings of several families and versions.
ENCLOSING = re.compile(r"^(?:(?:model|transformer|language_model|decoder)\.)+")


class SafetensorsFiles:
    """Tensors by name without the enclosing modules. A `TensorFile`."""

    def __init__(self, directory: Path):
        """Opens the headers; data is read on demand.

        Raises:
          FileNotFoundError: no safetensors here, or not all files of the index.
          ValueError: a file is truncated or is not what the index says.
        """
        self.place = str(directory)
        self._open = contextlib.ExitStack()
        self._where: dict[str, tuple] = {}  # short name -> (open file, name in it)
        for path, expected in _listing(directory).items():
            self._add(path, expected)

    def __enter__(self) -> "SafetensorsFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def names(self) -> Collection[str]:
        return self._where.keys()

    def dtype(self, name: str) -> str:
        """In the spelling of the file, `BF16`."""
        file, full_name = self._where[name]
        return file.get_slice(full_name).get_dtype()

    def shape(self, name: str) -> tuple[int, ...]:
        file, full_name = self._where[name]
        return tuple(file.get_slice(full_name).get_shape())

    def read(self, name: str) -> np.ndarray:
        file, full_name = self._where[name]
        return file.get_tensor(full_name)

    def _add(self, path: Path, expected: set[str] | None) -> None:
        try:
            file = self._open.enter_context(safe_open(path, framework="numpy"))
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is no complete safetensors file ({error}); download it again."
            ) from error
        names = set(file.keys())
        if expected is not None and names != expected:
            raise ValueError(
                f"{path} does not hold what {INDEX} says: it lacks "
                f"{sorted(expected - names)} and also holds {sorted(names - expected)}; "
                "download the directory again."
            )
        for full_name in names:
            name = ENCLOSING.sub("", full_name)
            if name in self._where:
                raise ValueError(
                    f"{self.place} holds {name} twice, once as {full_name} in "
                    f"{path.name}; keep the files of one model only."
                )
            self._where[name] = (file, full_name)


def _listing(directory: Path) -> Mapping[Path, set[str] | None]:
    """Files to open and, where an index says so, the tensors each must hold."""
    index = directory / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} has no weight_map; download it again.")
        strange = {
            name: file_name
            for name, file_name in weight_map.items()
            if not isinstance(file_name, str) or not SHARD.fullmatch(file_name)
        }
        if strange:
            raise ValueError(
                f"{index} must give each tensor the name of a file beside it, not "
                f"{reprlib.repr(strange)}; download it again."
            )
        files: dict[Path, set[str]] = {}
        for name, file_name in weight_map.items():
            files.setdefault(directory / file_name, set()).add(name)
        absent = sorted(path.name for path in files if not path.exists())
        if absent:
            raise FileNotFoundError(
                f"{index} names files that are not there: {', '.join(absent)}; download "
                "them too."
            )
        return files
    if (directory / SINGLE).exists():
        return {directory / SINGLE: None}
    others = sorted(path.name for path in directory.iterdir())
    raise FileNotFoundError(
        f"{directory} has neither {SINGLE} nor {INDEX}, only {', '.join(others)}; save the "
        "model as safetensors (save_pretrained(..., safe_serialization=True))."
    )
