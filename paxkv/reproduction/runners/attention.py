"""Decode attention over blocks and over one piece of memory per sequence, timed in turns.

Of the tree it reads the heads of `model`, which has as many of K and V, `cache.block_size`,
`cache.dtype`, `engine.implementation` of the kernel, and `attention` (`batch`, `context` in
tokens, `rounds`). The contiguous cache has the same numbers, in float32 always. It is
attended twice: by the same kernel, with a single block per sequence, and by XLA over dense
K and V, without tables.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any

KIND = "measured"


def run(tree: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Medians in ms, what blocks add to a contiguous cache in percent, the largest error.

    Raises:
      RuntimeError: jax runs on something else than a CPU.
    """
    import jax  # only where something is timed
    import numpy as np

    from pallas_kernels import benchmarking

    del profile  # its times are real
    device = jax.devices()[0]
    if device.platform != "cpu":
        raise RuntimeError(
            f"jax runs on {device.platform!r}, and this times the CPU's kernel; set "
            "JAX_PLATFORMS=cpu."
        )
    wanted, model, cache = tree["attention"], tree["model"], tree["cache"]
    problem = benchmarking.Problem(
        batch=wanted["batch"],
        context=wanted["context"],
        block_size=cache["block_size"],
        dtype=cache["dtype"],
        num_heads=model["num_heads"],
        kv_heads=model["num_kv_heads"],
        head_dim=model["head_dim"],
        is_prefill=False,
    )
    runs = _calls(problem, tree["engine"]["implementation"], device)
    results = {name: np.asarray(call(), np.float32) for name, call in runs.items()}
    errors = {
        name: float(np.abs(results["paged"] - result).max())
        for name, result in results.items()
        if name != "paged"
    }
    evict = benchmarking.make_evict(device.platform)
    seconds = benchmarking.interleaved(runs, wanted["rounds"], evict)
    median_ms = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    return {
        "device": f"{benchmarking.machine()['cpu']}, CPU",
        "median_ms": median_ms,
        "overhead_percent": {
            name: 100 * (median_ms["paged"] / median_ms[name] - 1) for name in errors
        },
        "largest_error": max(errors.values()),
        "kv_bytes": problem.kv_bytes,
    }


def _calls(problem: Any, kernel: str, device: Any) -> dict[str, Callable[[], Any]]:
    """Over blocks, over a block per sequence, and without blocks."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels import benchmarking
    from pallas_kernels.kv_blocks import KVBlocks
    from pallas_kernels.layout import kv_layout

    exact = dataclasses.replace(problem, dtype="float32")
    inputs = benchmarking.make_inputs(exact, device.platform)
    layout, rows = inputs.cache.layout, inputs.cache.rows()
    stored = kv_layout(problem.kv_heads, problem.head_dim, problem.dtype, device.platform)
    paged = inputs._replace(cache=KVBlocks.of_rows(stored, rows))

    blocks = rows[0][inputs.block_tables]  # [B, blocks, tokens, rows, D]
    whole = blocks.reshape(problem.batch, -1, *blocks.shape[3:])[:, : problem.context]
    null_block = jnp.zeros_like(whole[:1])
    one_block = inputs._replace(
        cache=KVBlocks.of_rows(layout, jnp.concatenate((null_block, whole))[jnp.newaxis]),
        block_tables=jnp.arange(1, problem.batch + 1, dtype=jnp.int32)[:, jnp.newaxis],
    )
    k, v = (jnp.swapaxes(part, 1, 2) for part in layout.split(whole))

    @jax.jit
    def dense(q, k, v):  # K and V as [B, H, tokens, D], which XLA multiplies fastest
        logits = jnp.einsum("bhd,bhkd->bhk", q, k) * problem.scale
        return jnp.einsum("bhk,bhkd->bhd", jax.nn.softmax(logits), v)

    kind = device.device_kind
    of_one = dataclasses.replace(exact, block_size=problem.context)
    return {
        "paged": benchmarking.make_run(problem, paged, kernel, kind),
        "one_block": benchmarking.make_run(of_one, one_block, kernel, kind),
        "dense_xla": lambda: jax.block_until_ready(dense(inputs.q, k, v)),
    }
