"""Paged attention in JAX, usable without paxkv: arrays and block tables in, arrays out.

Axis letters: T tokens in the step, S sequences, S1 = S + 1, P blocks per sequence,
B block size (tokens), N blocks in the pool, L layers, H query heads, K kv heads,
G = H / K, D head size, R = 2K rows of a token as the caller sees them (K, V, K, V, ...);
Rp and Dp are the rows and their length as the pool stores them.
"""
