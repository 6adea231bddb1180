"""Converts a Hugging Face directory or a GGUF file into this project's own checkpoint.

    python -m experiments.convert --weights=PATH --out=FOLDER --dtype=bfloat16

The folder then holds the model's config, its weights and its tokenizer: all that `LLM`
needs. A source without a tokenizer is converted too; `parity` does without, for `LLM` add
a `tokenizer.json`.
"""

import shutil
import tempfile
from pathlib import Path

from absl import app, flags, logging

from experiments import entry
from paxkv.models.checkpoint import TOKENIZER, is_checkpoint, save_checkpoint
from paxkv.models.loading import load_decoder
from paxkv.models.parameters import DTYPES, decoder_params
from paxkv.tokenizer import Tokenizer

WEIGHTS = flags.DEFINE_string("weights", "", "A Hugging Face directory or a GGUF file.")
OUT = flags.DEFINE_string("out", "", "Folder of the new checkpoint.")
DTYPE = flags.DEFINE_enum("dtype", "float32", DTYPES, "Of the weights; norms stay float32.")
OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace the checkpoint in --out.")
flags.register_validator(
    "weights", bool, "give the Hugging Face directory or the GGUF file to convert."
)
flags.register_validator("out", bool, "give a folder for the new checkpoint.")


def check_out(out: Path) -> None:
    """Refuses to write over what is no checkpoint, or over one without leave.

    Raises:
      FileExistsError: `out` is in the way.
    """
    if not out.exists():
        return
    if not is_checkpoint(out):
        raise FileExistsError(
            f"--out={out} exists and is no checkpoint; give a folder that does not exist."
        )
    if not OVERWRITE.value:
        raise FileExistsError(
            f"--out={out} holds a checkpoint; pass --overwrite to replace it."
        )


def find_tokenizer(weights: Path, folder: Path) -> Path | None:
    """The model's `tokenizer.json`, written to `folder` first if it is inside a GGUF."""
    if weights.is_dir():
        file = weights / TOKENIZER
        return file if file.is_file() else None
    Tokenizer.load(weights).save(folder / TOKENIZER)
    return folder / TOKENIZER


def main() -> None:
    logging.set_verbosity(logging.FATAL)  # what Orbax logs in its threads is raised, too
    weights, out = Path(WEIGHTS.value), Path(OUT.value)
    scratch = Path(tempfile.mkdtemp(prefix="paxkv-convert-"))
    try:
        check_out(out)
        tokenizer = None
        decoder = load_decoder(weights, DTYPE.value)
        try:
            tokenizer = find_tokenizer(weights, scratch)
        except ValueError as error:
            print(f"No tokenizer is written: {error}")
        save_checkpoint(out, decoder, tokenizer=tokenizer)
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error
    finally:
        shutil.rmtree(scratch)
    model, params = decoder.config, decoder_params(decoder)
    print(
        f"{out}: {model.family}, {model.num_layers} layers, "
        f"{sum(array.size for array in params.values()):,} parameters, "
        f"{sum(array.nbytes for array in params.values()) / 2**20:.1f} MiB as "
        f"{DTYPE.value}, {'with' if tokenizer else 'without'} a tokenizer; "
        f"tokens start with {model.bos_token_id} and end with {model.eos_token_ids}."
    )


if __name__ == "__main__":
    entry.run(main)
