"""Means over seeds with their confidence intervals."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Two-sided 95 % quantiles of Student's t by degrees of freedom 1, 2, ... 30 (NIST/SEMATECH
# e-Handbook, section 1.3.6.7.2, https://www.itl.nist.gov/div898/handbook/eda/section3/
# eda3672.htm). Beyond these the last is used, which makes an interval at most 4 % too wide.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
METHOD = "mean over seeds ± the half width of its 95 % interval (Student's t)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean, how many values it is of, and how far from it the true mean may lie."""

    mean: float  # nan of no values
    half_width: float | None  # None: fewer than two values say nothing of their spread
    num_values: int


def estimate(values: Iterable[float | int | None]) -> Estimate:
    """Of the finite values; what a run could not measure is no value."""
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    if not known:
        return Estimate(mean=math.nan, half_width=None, num_values=0)
    mean = float(np.mean(known))
    if len(known) == 1:
        return Estimate(mean=mean, half_width=None, num_values=1)
    quantile = T_QUANTILES[min(len(known) - 1, len(T_QUANTILES)) - 1]
    half_width = quantile * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return Estimate(mean=mean, half_width=half_width, num_values=len(known))


def estimate_text(value: Estimate, digits: int = 2, scale: float | int = 1) -> str:
    """`mean ±half`, only the mean of one value, a dash of none."""
    if not value.num_values:
        return "-"
    text = f"{value.mean * scale:,.{digits}f}"
    if value.half_width is None:
        return text
    return f"{text} ±{value.half_width * scale:,.{digits}f}"
