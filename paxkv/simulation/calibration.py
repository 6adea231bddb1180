"""Fits the coefficients of a `MeasuredModel` to recorded steps, and tells its error.

Coefficients are non-negative, since no work gives time back. The fit has the least mean
absolute error relative to each step's time: what a disturbed step lost pulls it no further
than any other error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from paxkv.simulation.measured_model import Calibration, FitError, MeasuredModel
from paxkv.simulation.step_features import (
    feature_names,
    host_feature_names,
    host_features,
    padded_sizes,
    step_features,
)
from paxkv.simulation.step_records import StepRecord
from paxkv.simulation.work import CostModel

MIN_STEPS = 32
REWEIGHTINGS = 30  # after which the coefficients no longer change by 1 %
CLOSE = 1e-3  # relative errors below it weigh the same


def fit_calibration(
    records: Sequence[StepRecord],
    held_out: Mapping[str, Sequence[StepRecord]],
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    device: str,
    model: str,
    facts: Mapping[str, Any],
) -> Calibration:
    """Fits to `records`, and tries the result on each of the held-out sets.

    Args:
      max_num_seqs, max_num_batched_tokens: of the engine that ran the steps.

    Raises:
      ValueError: the records are too few, or of models with different cache groups.
    """
    if len(records) < MIN_STEPS:
        raise ValueError(
            f"{len(records)} steps are too few to fit {len(feature_names(1))} numbers to; "
            f"record ≥ {MIN_STEPS}."
        )
    everything = [*records, *(one for many in held_out.values() for one in many)]
    counts = {len(record.work.decode_context_tokens) for record in everything}
    if len(counts) > 1:
        raise ValueError(
            f"steps have {sorted(counts)} cache groups; fit one model at a time."
        )
    (num_groups,) = counts
    sizes = padded_sizes(max_num_seqs, max_num_batched_tokens)
    names = feature_names(num_groups)
    table = np.array([step_features(sizes, r.work) for r in records], np.float64)
    host_table = np.array([host_features(r.work) for r in records], np.float64)
    device_s = _least_relative_errors(table, np.array([r.duration_s for r in records]))
    host_s = _least_relative_errors(host_table, np.array([r.host_s for r in records]))
    is_seen = table.any(axis=0)
    fitted = Calibration(
        device_s=dict(zip(names, device_s.tolist(), strict=True)),
        host_s=dict(zip(host_feature_names(), host_s.tolist(), strict=True)),
        unseen=tuple(name for name, seen in zip(names, is_seen, strict=True) if not seen),
        num_groups=num_groups,
        device=device,
        model=model,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        errors={},
        facts=facts,
    )
    cost = MeasuredModel(
        fitted, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )
    sets = {"fit": records} | dict(held_out)
    return replace(fitted, errors={name: fit_error(cost, of) for name, of in sets.items()})


def with_total_of(calibration: Calibration, records: Sequence[StepRecord]) -> Calibration:
    """All coefficients scaled by one factor, so that these steps together take what was
    measured: for predicting whole runs, of which the fit gives slow steps little weight.
    """
    cost = MeasuredModel(
        calibration,
        max_num_seqs=calibration.max_num_seqs,
        max_num_batched_tokens=calibration.max_num_batched_tokens,
    )
    measured_s = sum(record.duration_s + record.host_s for record in records)
    factor = measured_s / sum(cost.seconds(record.work).total_s for record in records)
    return replace(
        calibration,
        device_s={name: value * factor for name, value in calibration.device_s.items()},
        host_s={name: value * factor for name, value in calibration.host_s.items()},
    )


def fit_error(cost: CostModel, records: Sequence[StepRecord]) -> FitError:
    """How far predicted times of whole steps are from the recorded ones.

    Raises:
      ValueError: there are no records, or a step took no time.
    """
    measured = np.array([record.duration_s + record.host_s for record in records])
    if not len(measured) or measured.min() <= 0:
        raise ValueError(
            f"{len(measured)} steps, {int((measured <= 0).sum())} of them without a time: "
            "an error is relative to times above 0; record such steps."
        )
    predicted = np.array([cost.seconds(record.work).total_s for record in records])
    relative = predicted / measured - 1
    return FitError(
        num_steps=len(records),
        mape=float(np.abs(relative).mean()),
        p95=float(np.percentile(np.abs(relative), 95)),
        bias=float(relative.mean()),
    )


def _least_relative_errors(
    features: Float64[np.ndarray, "n f"], seconds: Float64[np.ndarray, "n"]
) -> Float64[np.ndarray, "f"]:
    """Non-negative coefficients with the least sum of |predicted / measured - 1|.

    Squares are minimised again and again, each weighted by what its error was (iteratively
    reweighted least squares; Holland and Welsch, 1977).
    """
    from scipy.optimize import nnls  # 0.3 s to import, and only fits need it

    ran = seconds > 0
    relative = features[ran] / seconds[ran, None]
    scales = np.abs(relative).max(axis=0, initial=0.0)
    scales[scales == 0] = 1.0
    relative = relative / scales
    weights = np.ones(len(relative))
    found = np.zeros(features.shape[1])
    for _ in range(REWEIGHTINGS):
        found, _ = nnls(relative * weights[:, None], weights)
        weights = np.maximum(np.abs(relative @ found - 1), CLOSE) ** -0.5
    return found / scales
