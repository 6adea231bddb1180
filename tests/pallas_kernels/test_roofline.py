"""Counts that a reader can make by hand."""

import dataclasses

import pytest

from pallas_kernels.paged_attention.cases import Case
from pallas_kernels.roofline import CHIPS, Chip, Work, attention_work

DECODE = Case(
    name="decode", num_heads=4, kv_heads=2, head_dim=8, block_size=4, context_lens=(9, 0, 4)
)
F32 = dict(dtype="float32", q_dtype="float32", platform="gpu")


def test_decode():
    work = attention_work(DECODE, **F32)
    assert work.kv_bytes == (3 + 1) * 4 * 2 * 2 * 8 * 4  # blocks, B, K and V, heads, D, f32
    assert work.other_bytes == 3 * 4 * (8 + 8) * 4 + 4 * 4  # q and out, table entries
    assert work.flops == (9 + 4) * 4 * (2 * 8 + 2 * 8)


def test_ragged_is_causal():
    ragged = dataclasses.replace(DECODE, context_lens=(9,), query_lens=(3,))
    work = attention_work(ragged, **F32)
    assert work.flops == (7 + 8 + 9) * 4 * 32
    assert work.kv_bytes == 3 * 4 * 2 * 2 * 8 * 4


def test_a_window_skips_blocks():
    windowed = dataclasses.replace(DECODE, context_lens=(9,), window=3)
    work = attention_work(windowed, **F32)  # positions 6 to 8, in blocks 1 and 2
    assert work.kv_bytes == 2 * 4 * 2 * 2 * 8 * 4
    assert work.flops == 3 * 4 * 32


def test_a_chunk_begins_where_it_begins():
    chunked = dataclasses.replace(DECODE, context_lens=(15,), chunk_size=6)
    assert attention_work(chunked, **F32).flops == 3 * 4 * 32  # positions 12 to 14


def test_latents_are_read_once_and_layouts_pad():
    latent = Case(
        name="mla",
        num_heads=16,
        kv_heads=1,
        head_dim=576,
        value_dim=512,
        block_size=16,
        context_lens=(32,),
    )
    bf16 = dict(dtype="bfloat16", q_dtype="bfloat16")
    assert attention_work(latent, **bf16, platform="gpu").kv_bytes == 32 * 576 * 2
    assert attention_work(latent, **bf16, platform="tpu").kv_bytes == 32 * 640 * 2
    int8 = attention_work(latent, dtype="int8", q_dtype="bfloat16", platform="gpu")
    assert int8.kv_bytes == 32 * (576 + 4)


def test_the_slower_of_moving_and_computing():
    chip = Chip(platform="gpu", bytes_per_s=10.0, flops_per_s=100.0)
    assert Work(kv_bytes=40, other_bytes=10, flops=100).seconds(chip) == 5.0
    assert Work(kv_bytes=40, other_bytes=10, flops=1000).seconds(chip) == 10.0
    assert {chip.platform for chip in CHIPS.values()} == {"gpu", "tpu"}
    assert min(chip.bytes_per_s for chip in CHIPS.values()) == pytest.approx(819e9)
