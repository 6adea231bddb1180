"""What a measurement of attention says, in one line."""

from paxkv.results import Row


def attention_line(row: Row) -> str:
    """The problem; of each run ms, G/s and, in brackets, the ratio to the yardstick."""
    problem = row["problem"]
    cells = [
        f"{problem['dtype']:<13}",
        f"{problem['context']:>6} × {problem['batch']:<3}",
        f"B {problem['block_size']:<4}",
    ]
    for name, ms in row["median_ms"].items():
        rate, ratio = row["giga_per_s"][name], row["ratio"][name]
        cells.append(f"{name} {ms:.3f} ms {rate:.1f} G/s ({ratio:.2f})")
    return "  ".join(cells)
