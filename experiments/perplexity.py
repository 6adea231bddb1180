"""Perplexity of a text file under a model, through the paged cache.

python -m experiments.perplexity --model=paxkv/assets/recall --text=README.md
"""

from pathlib import Path

from absl import app, flags, logging

from experiments import entry
from paxkv import LLM

MODEL = flags.DEFINE_string("model", None, "Checkpoint, directory or GGUF.", required=True)
TEXT = flags.DEFINE_string("text", None, "A UTF-8 text file.", required=True)
DTYPE = flags.DEFINE_string("dtype", "float32", "Of the weights.")
KV_DTYPE = flags.DEFINE_string("kv_cache_dtype", None, "Of the pool; default: --dtype.")
BLOCK_SIZE = flags.DEFINE_integer("block_size", 16, "Tokens per block.")
MAX_CONTEXT = flags.DEFINE_integer("max_context", None, "Tokens; default: the model's.")


def main() -> None:
    logging.set_verbosity(logging.WARNING)
    try:
        text = Path(TEXT.value).read_text(encoding="utf-8")
        llm = LLM(
            MODEL.value,
            dtype=DTYPE.value,
            kv_cache_dtype=KV_DTYPE.value,
            block_size=BLOCK_SIZE.value,
            max_model_len=MAX_CONTEXT.value,
            max_num_seqs=4,  # the file's windows; more would only make the pool larger
        )
        perplexity = llm.perplexity(text)
    except (ValueError, OSError, ImportError) as error:
        raise app.UsageError(str(error)) from error
    plan = llm.executor.cache_plan
    print(
        f"{llm.executor.device_name}: {llm.executor.options.attention.implementation} "
        f"attention, {DTYPE.value} weights, {plan.layout.dtype} cache, "
        f"{plan.num_blocks - 1} blocks x {plan.block_size} tokens, "
        f"{llm.executor.num_programs} programs"
    )
    print(f"perplexity of {TEXT.value}: {perplexity:.4f}")


if __name__ == "__main__":
    entry.run(main)
