"""Tables that are printed and shown on a page alike."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_WIDTH = 100  # characters of a line
GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells are text; the first column labels a line."""

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def __post_init__(self):
        if any(len(line) != len(self.head) for line in self.lines):
            raise ValueError(
                f"table {self.title!r} has {len(self.head)} columns, but lines of "
                f"{sorted({len(line) for line in self.lines})} cells."
            )


def table_text(table: Table, width: int = MAX_WIDTH) -> str:
    """Aligned lines of at most `width` characters: columns that do not fit follow below."""
    widths = [
        max(map(len, column)) for column in zip(table.head, *table.lines, strict=True)
    ]
    label_width = min(widths[0], width // 2)
    parts: list[list[int]] = [[]]
    used = label_width
    for column in range(1, len(table.head)):
        if parts[-1] and used + len(GAP) + widths[column] > width:
            parts.append([])
            used = label_width
        parts[-1].append(column)
        used += len(GAP) + widths[column]
    blocks = [_block(table, columns, label_width, widths) for columns in parts]
    return "\n\n".join([f"{table.title}\n{blocks[0]}", *blocks[1:]])


def _block(
    table: Table, columns: Sequence[int], label_width: int, widths: Sequence[int]
) -> str:
    def text(line: Sequence[str]) -> str:
        label = line[0]
        if len(label) > label_width:
            label = label[: label_width - 1] + "…"
        cells = [f"{line[column]:>{widths[column]}}" for column in columns]
        return GAP.join([f"{label:<{label_width}}", *cells]).rstrip()

    head = text(table.head)
    rule = "-" * max(len(head), label_width)
    return "\n".join([head, rule, *(text(line) for line in table.lines)])
