"""Which implementations the ops offer, and one check of the name."""

from typing import Literal

Implementation = Literal["reference", "xla"]
OFFERED: tuple[Implementation, ...] = ("reference", "xla")


def check_implementation(implementation: str) -> None:
    """Raises ValueError unless the implementation is offered; there is no fallback."""
    if implementation not in OFFERED:
        raise ValueError(
            f"{implementation=} is not offered; use one of {', '.join(OFFERED)}."
        )
