"""Splitting the keys of a tile among programs, where the tiles of a GPU are too few."""

# Streaming multiprocessors, by a part of the name. Others are taken for the smallest.
MULTIPROCESSORS = {"A100": 108, "H100": 132, "H200": 132, "B200": 148}
MIN_TOKENS_PER_SPLIT = 512  # below, merging the parts costs more than it gains
MAX_SPLITS = 32


def num_splits(programs: int, max_context: int, device_kind: str | None) -> int:
    """Parts of the keys, so that each multiprocessor has two programs to run.

    Args:
      programs: that there are without splits.
      max_context: tokens that a row of the table has room for.
    """
    known = (sms for name, sms in MULTIPROCESSORS.items() if name in (device_kind or ""))
    multiprocessors = next(known, min(MULTIPROCESSORS.values()))
    wanted = -(-2 * multiprocessors // max(1, programs))
    return max(1, min(wanted, max_context // MIN_TOKENS_PER_SPLIT, MAX_SPLITS))
