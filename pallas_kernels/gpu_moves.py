"""Copies rows of numbers to rows of a pool by TMA, in Pallas Mosaic GPU (Hopper on).

A row is whatever is copied at once: a token's K and V of all heads, or a block of one
layer. Programs copy a piece of a row each, through shared memory; no number passes a
register, so that all dtypes are alike.
"""

import jax
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int32, Shaped

from pallas_kernels.gpu_compat import interpret_params

TMA_BYTES = 16  # addresses and widths are multiples of it
TMA_NUMBERS = 256  # the most along an axis of what is copied at once
MAX_ROWS = 2**31
MAX_PIECE_BYTES = 32 * 2**10  # several programs share a multiprocessor's memory


def piece_shape(width: int, itemsize: int) -> tuple[int, int]:
    """The largest [lines, numbers] that TMA copies at once and that divides a row.

    Raises:
      ValueError: a row that is no multiple of 16 bytes.
    """
    if width * itemsize % TMA_BYTES:
        raise ValueError(
            f"a row of {width} numbers of {itemsize} bytes must be a multiple of "
            f"{TMA_BYTES} bytes with implementation='gpu', which copies by TMA; use "
            "implementation='gpu_triton' or 'xla'."
        )

    def largest_divisor(value: int, limit: int, multiple: int = 1) -> int:
        sizes = range(min(value, limit), 0, -1)
        return next(n for n in sizes if value % n == 0 and n % multiple == 0)

    numbers = largest_divisor(width, TMA_NUMBERS, max(1, TMA_BYTES // itemsize))
    limit = min(TMA_NUMBERS, MAX_PIECE_BYTES // (numbers * itemsize))
    return largest_divisor(width // numbers, limit), numbers


def _copy(src_ref, dst_ref, from_ref, to_ref, piece_ref, loaded) -> None:
    i, piece = lax.axis_index("row"), lax.axis_index("piece")
    plgpu.copy_gmem_to_smem(from_ref.at[src_ref[i], piece], piece_ref, loaded)
    plgpu.barrier_wait(loaded)
    plgpu.copy_smem_to_gmem(piece_ref, to_ref.at[dst_ref[i], piece])
    plgpu.wait_smem_to_gmem(0)


def move_rows(
    source: Shaped[Array, "rows *row"] | None,
    src: Int32[Array, "n"],
    target: Shaped[Array, "rows_out *row"] | None,
    dst: Int32[Array, "n"],
    *,
    interpret: bool,
) -> Shaped[Array, "rows_out *row"]:
    """Copies row src[i] to row dst[i] of `target`, which is donated.

    Without a source within `target`, without a target into a new array of n rows. Where
    several dst are equal, any of the rows stays.

    Raises:
      ValueError: a row that is no multiple of 16 bytes, or too many rows.
    """
    like = target if source is None else source
    if like is None:
        raise ValueError("source and target must not both be None.")
    for pool in (source, target):
        if pool is not None and len(pool) >= MAX_ROWS:
            raise ValueError(
                f"a pool of {len(pool)} rows must have less than {MAX_ROWS} with "
                "implementation='gpu', which counts them in int32; use a smaller pool."
            )
    row = like.shape[1:]
    width = like.size // len(like)
    lines, numbers = piece_shape(width, like.dtype.itemsize)
    pieces = (width // (lines * numbers), lines, numbers)

    def in_pieces(x):  # for XLA another name of the same array
        return x.reshape(len(x), *pieces)

    def run(body, *arguments, out_type=()):
        return plgpu.kernel(
            body,
            out_type=out_type,
            grid=(len(src), pieces[0]),
            grid_names=("row", "piece"),
            scratch_types=dict(
                piece_ref=plgpu.SMEM(pieces[1:], like.dtype), loaded=plgpu.Barrier()
            ),
            interpret=interpret_params() if interpret else None,
        )(src, dst, *arguments)

    if target is None:
        shape = jax.ShapeDtypeStruct((len(src), *pieces), like.dtype)
        return run(_copy, in_pieces(like), out_type=shape).reshape(len(src), *row)
    target_ref = jax.new_ref(in_pieces(target))
    if source is None:

        def copy_within(src_ref, dst_ref, pool_ref, **scratch):
            _copy(src_ref, dst_ref, pool_ref, pool_ref, **scratch)

        run(copy_within, target_ref)
    else:
        run(_copy, in_pieces(source), target_ref)
    return jax.freeze(target_ref).reshape(target.shape)
