"""What the Triton kernels share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.triton_calls import next_power_of_two, to_float32, triton_call


def test_every_float8_is_converted():
    """All 256 patterns, the subnormal ones included; NaN becomes ±480."""
    bits = np.arange(256, dtype=np.uint8)
    numbers = jnp.asarray(bits).view(jnp.float8_e4m3fn)
    wanted = np.asarray(numbers.astype(jnp.float32))
    wanted = np.where(np.isnan(wanted), np.where(bits > 127, -480.0, 480.0), wanted)
    np.testing.assert_array_equal(to_float32(numbers), wanted)


@pytest.mark.parametrize(("value", "power"), [(1, 16), (16, 16), (17, 32), (576, 1024)])
def test_powers_of_two(value, power):
    assert next_power_of_two(value, 16) == power


def test_offsets_into_outputs_must_fit():
    """As those into arguments, which the kernels' own tests have."""
    outputs = [jax.ShapeDtypeStruct((2**31 + 1,), jnp.int8)]
    with pytest.raises(ValueError, match=r"2147483649 numbers .* 32-bit offsets"):
        triton_call(None, jnp.zeros(1), grid=(1,), outputs=outputs, num_warps=4)
