"""`xla` equals the reference on shapes that nobody chose."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.paged_attention.cases import Case, make_inputs
from tests.pallas_kernels.paged_attention.running import TOLERANCE, attend


@st.composite
def case_fields(draw):
    """Ragged and decode, any head and block sizes; contexts up to 280 tokens.

    Fields and not a `Case`: checking its types draws random numbers, which a strategy
    must not.
    """
    kv_heads = draw(st.integers(1, 4))
    num_seqs = draw(st.integers(1, 5))
    query_lens = None
    if draw(st.booleans()):
        query_lens = draw(st.tuples(*[st.integers(1, 50)] * num_seqs))
    shortest = query_lens or (0,) * num_seqs
    extra = draw(st.tuples(*[st.integers(0, 150)] * num_seqs))
    lengths = [a + b for a, b in zip(shortest, extra, strict=True)]
    block_size = draw(st.integers(1, 40))
    if max(lengths) < 2 * block_size:
        lengths[0] += 2 * block_size  # the pool's two ends want an owner each
    return dict(
        name="drawn",
        num_heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 24, 64, 128])),
        block_size=block_size,
        context_lens=tuple(lengths),
        query_lens=query_lens,
        window=draw(st.none() | st.integers(1, 120)),
        soft_cap=draw(st.none() | st.floats(0.5, 30.0)),
        has_sinks=draw(st.booleans()),
        padding_seqs=draw(st.integers(0, 2)) if query_lens else 0,
        padding_tokens=draw(st.integers(0, 9)) if query_lens else 0,
    )


@settings(max_examples=8, deadline=None)
@given(
    fields=case_fields(),
    seed=st.integers(0, 2**16),
    platform=st.sampled_from(["cpu", "tpu"]),
)
def test_xla_is_the_reference(fields, seed, platform):
    case = Case(**fields)
    inputs = make_inputs(case, seed=seed, platform=platform)
    actual = attend(case, inputs, "xla")
    for a, b in zip(actual, attend(case, inputs, "reference"), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)
