"""Figures as files: matplotlib is an extra, and a file appears whole or not at all."""

import os
from pathlib import Path
from typing import Any

from paxkv.results import explained


def require_matplotlib(path: Path) -> None:
    """Matplotlib is imported where a figure is drawn.

    Raises:
      ImportError: it is not installed; the message names the figure and the extra.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{path} needs matplotlib: install the extra, pip install 'paxkv[plots]'."
        ) from error


def save_figure(figure: Any, path: Path, file_format: str) -> None:
    """Writes the figure, in place of one that is there.

    Raises:
      ResultsNotWritten: the file could not be written.
    """
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    with explained(path):
        try:
            figure.savefig(unfinished, format=file_format)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def save_png(figure: Any, path: Path) -> None:
    """The same as PNG, whatever the path's ending."""
    save_figure(figure, path, "png")
