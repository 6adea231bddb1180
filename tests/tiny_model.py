"""A small random decoder for tests of the serving path; no file, no tokenizer."""

import functools

import jax
from flax import nnx

from paxkv.models.config import ModelConfig, RopeConfig
from paxkv.models.decoder import Decoder

SPREAD = 3.0  # scales the output head, so that the two best logits lie well apart


def tiny_byte_decoder() -> Decoder:
    """A `tiny_decoder` whose token ids are bytes."""
    return tiny_decoder(vocab_size=256)


@functools.cache
def tiny_decoder(
    windows: tuple[int, ...] = (0, 0), max_context: int = 128, vocab_size: int = 61
) -> Decoder:
    """GQA, RoPE, float32; `windows` per layer, 0 = full attention."""
    config = ModelConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_layers=len(windows),
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_context=max_context,
        rope=RopeConfig(theta=1e4),
        layer_windows=windows,
        attention_scale=8**-0.5,
        eos_token_ids=(60,),
    )
    decoder = Decoder(config, rngs=nnx.Rngs(7))
    nnx.update(decoder, jax.tree.map(lambda x: x * SPREAD, nnx.state(decoder, nnx.Param)))
    return decoder
