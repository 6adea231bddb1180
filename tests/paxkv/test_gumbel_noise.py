"""The noise that sampling perturbs logits with."""

import jax
import jax.numpy as jnp
import numpy as np

from paxkv.sampling import gumbel_noise

NOISE_OF_SEED_7_42 = (3.178946, 0.338467, -1.061267, -1.021314)
jit_noise = jax.jit(gumbel_noise, static_argnums=3)


def first_noise(seed: list[int], vocab_size: int) -> np.ndarray:
    """Of a first sample at position 9."""
    zero, nine = np.zeros(1, np.int32), np.full(1, 9, np.int32)
    return np.asarray(jit_noise(np.array([seed], np.uint32), zero, nine, vocab_size))


def test_noise_is_gumbel_and_depends_on_every_bit_of_the_seed():
    seeds = np.array([[0, 1], [1, 0], [0, 2], [0, 1]], np.uint32)
    samples, positions = np.zeros(4, np.int32), np.array([5, 5, 5, 6], np.int32)
    noise = np.asarray(jit_noise(seeds, samples, positions, 20_000))
    assert np.isfinite(noise).all()
    np.testing.assert_allclose(noise.mean(axis=-1), np.euler_gamma, atol=0.04)
    np.testing.assert_allclose(noise.var(axis=-1), np.pi**2 / 6, rtol=0.05)
    correlation = np.corrcoef(noise)
    assert np.abs(correlation - np.eye(4)).max() < 0.03


def test_noise_follows_the_documented_key():
    """The key of a small seed is that of `jax.random.key`: others can recompute it."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(42), 0), 9)
    bits = np.asarray(jax.random.bits(key, (50,), jnp.uint32)).astype(np.float64)
    expected = -np.log(-np.log1p(-(bits + 0.5) / 2**32))
    noise = first_noise([0, 42], 50)
    np.testing.assert_allclose(noise[0], expected, rtol=1e-4, atol=1e-5)


def test_noise_is_the_same_in_every_version_of_jax():
    noise = first_noise([7, 42], 4)
    np.testing.assert_allclose(noise[0], NOISE_OF_SEED_7_42, rtol=1e-5)
