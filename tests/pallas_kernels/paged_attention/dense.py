"""Attention over whole sequences in float64 NumPy: the oracle of the reference."""

import numpy as np

from pallas_kernels.paged_attention.cases import Case, Inputs


def logical_kv(inputs: Inputs, seq: int) -> tuple[np.ndarray, np.ndarray]:
    """K [context, K, D] and V [context, K, Dv], gathered position by position."""
    size = inputs.cache.block_size
    rows = np.asarray(inputs.cache.rows()[inputs.layer], np.float64)
    table = np.asarray(inputs.block_tables)[seq]
    positions = np.arange(int(inputs.context_lens[seq]))
    rows = rows[table[positions // size], positions % size]
    if inputs.cache.layout.packing == "latent":
        return rows, rows[..., : inputs.cache.layout.value_dim]
    return rows[:, 0::2], rows[:, 1::2]


def dense_attention(case: Case, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Output and lse of the queries that belong to a sequence."""
    q = np.asarray(inputs.q, np.float64)
    sinks = case.options()["sinks"]
    outs, lses, first = [], [], 0
    for seq, count in enumerate(case.query_lens or (1,) * len(case.context_lens)):
        k, v = logical_kv(inputs, seq)
        context = len(k)
        for row in range(first, first + count):
            position = context - (first + count - row)
            low = 0 if case.window is None else max(0, position - case.window + 1)
            if case.chunk_size is not None:
                low = max(low, position // case.chunk_size * case.chunk_size)
            for head in range(case.num_heads):
                kv_head = head // (case.num_heads // case.kv_heads)
                logits = k[low : position + 1, kv_head] @ q[row, head] * case.scale
                if case.soft_cap is not None:
                    logits = case.soft_cap * np.tanh(logits / case.soft_cap)
                total = np.exp(logits).sum()
                if sinks is not None and context:
                    total += np.exp(float(sinks[head]))
                weighted = np.exp(logits) @ v[low : position + 1, kv_head]
                outs.append(weighted / total if context else 0 * weighted)
                lses.append(np.log(total) if context else -np.inf)
        first += count
    shape = (first, case.num_heads)
    return np.reshape(outs, (*shape, inputs.cache.layout.value_dim)), np.reshape(
        lses, shape
    )
