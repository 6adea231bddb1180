"""GGUF files: metadata and dequantised tensors, through the `gguf` package."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HUGE_FIELDS = "tokenizer.ggml.token", "tokenizer.ggml.scores", "tokenizer.ggml.merges"


def import_gguf(path: Path) -> ModuleType:
    """The `gguf` package, to read `path` with.

    Raises:
      ImportError: it is absent.
    """
    try:
        import gguf
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs the gguf package; pip install 'paxkv[gguf]'."
        ) from error
    return gguf


@contextmanager
def complete(path: Path) -> Generator[None, None, None]:
    """Explains what `gguf` raises inside the block when it reads a damaged file.

    Raises:
      ValueError: in place of all that.
    """
    try:
        yield
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        raise ValueError(
            f"{path} is no complete GGUF file ({error}); download it again."
        ) from error


class GgufFile:
    """Tensors by name, dequantised to float32 when read. A `TensorFile`."""

    def __init__(self, path: Path):
        """Maps the file into memory and reads its header.

        Raises:
          ImportError: the `gguf` package is absent.
          ValueError: the file is truncated, corrupt, or one part of several.
        """
        gguf = import_gguf(path)
        self.place = str(path)
        self._dequantize = gguf.dequantize
        with complete(path):
            reader = gguf.GGUFReader(path)
            # not the vocabulary, which is large and which the model does not need
            self.metadata: dict[str, Any] = {
                name: field.contents()
                for name, field in reader.fields.items()
                if not name.startswith(HUGE_FIELDS)
            }
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        num_parts = self.metadata.get("split.count", 1)
        if num_parts > 1:
            raise ValueError(
                f"{path} is one of {num_parts} parts of a model; join them first "
                "(llama-gguf-split --merge)."
            )

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def dtype(self, name: str) -> str:
        """Of what `read` returns."""
        return "F32"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def read(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            return self._dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ValueError(
                f"{name} of {self.place} is quantised as {tensor.tensor_type.name}, which "
                "the gguf package cannot expand; choose another quantisation."
            ) from error
