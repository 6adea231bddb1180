"""One entry for every kind of model file: what it is follows from its content."""

from pathlib import Path

from paxkv.models.checkpoint import CONFIG, WEIGHTS, is_checkpoint, load_checkpoint
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Decoder
from paxkv.models.families import gguf_table, hf_table
from paxkv.models.gguf_config import config_from_gguf
from paxkv.models.gguf_file import GgufFile
from paxkv.models.hf_config import config_from_hf
from paxkv.models.json_file import read_json
from paxkv.models.parameters import build_decoder, check_dtype
from paxkv.models.safetensors_file import SafetensorsFiles
from paxkv.models.weights import read_parameters

GGUF_MAGIC = b"GGUF"
GENERATION_CONFIG = "generation_config.json"


def load_decoder(path: str | Path, dtype: str = "float32") -> Decoder:
    """Loads a decoder from this project's checkpoint, a Hugging Face directory or GGUF.

    Args:
      path: a directory, or a `.gguf` file.
      dtype: of the weights in memory, `float32`, `bfloat16` or `float16`; norms stay
        float32.

    Raises:
      FileNotFoundError: there is no model at `path`, or a file of it is absent.
      ValueError: the family is not supported, a file is damaged, or tensors are
        missing, left over or of the wrong shape or dtype (all are named).
    """
    check_dtype(dtype)
    path = Path(path)
    if path.is_file():
        return _load_gguf(path, dtype)
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no model at {path}; give a directory with {CONFIG} or a .gguf file."
        )
    if is_checkpoint(path):
        return load_checkpoint(path, dtype)
    if (path / CONFIG).is_file():
        fields = read_json(path / CONFIG)
        if "family" in fields and "model_type" not in fields:  # our own config
            raise FileNotFoundError(
                f"{path / WEIGHTS} is missing, without which {CONFIG} is no checkpoint; "
                "copy the checkpoint again or convert the model anew."
            )
        return _load_hf(path, dtype)
    files = sorted(entry.name for entry in path.glob("*.gguf"))
    hint = f"give one of its files {', '.join(files)}" if files else "is it the right one?"
    raise FileNotFoundError(f"{path} has no {CONFIG}; {hint}")


def read_hf_config(directory: Path) -> ModelConfig:
    """`config.json`, with the stop tokens of `generation_config.json` if it is there.

    Raises:
      ValueError: a file is no JSON, or the model is not supported.
    """
    path = directory / CONFIG
    fields = read_json(path)
    generation = directory / GENERATION_CONFIG
    if generation.is_file():
        ends = read_json(generation).get("eos_token_id")
        fields |= {} if ends is None else {"eos_token_id": ends}
    try:
        return config_from_hf(fields)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(_strange(path, error)) from error
    except ValueError as error:
        place = f"{path} with {generation.name}" if generation.is_file() else str(path)
        raise ValueError(f"{place}: {error}") from error


def _strange(path: Path, error: Exception) -> str:
    return (
        f"{path} lacks a field or gives it a strange value ({error!r}); download it again."
    )


def _load_hf(directory: Path, dtype: str) -> Decoder:
    config = read_hf_config(directory)
    with SafetensorsFiles(directory) as tensors:
        params = read_parameters(config, tensors, hf_table(config), dtype)
    return build_decoder(config, params)


def _load_gguf(path: Path, dtype: str) -> Decoder:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ValueError(
            f"{path} starts with {magic!r}, a GGUF file with {GGUF_MAGIC!r}; give a GGUF "
            "file, or the directory that holds the model."
        )
    tensors = GgufFile(path)
    try:
        config = config_from_gguf(tensors)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(_strange(path, error)) from error
    except ValueError as error:
        at = "" if str(path) in str(error) else f"{path}: "
        raise ValueError(f"{at}{error}") from error
    return build_decoder(
        config, read_parameters(config, tensors, gguf_table(config), dtype)
    )
