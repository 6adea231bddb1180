"""Which cost model a profile of a device is."""

from paxkv.simulation.cost_model import RooflineModel
from paxkv.simulation.hardware import HardwareConfig
from paxkv.simulation.measured_model import MeasuredModel, load_calibration
from paxkv.simulation.model_shape import ModelShape
from paxkv.simulation.profiles import PROFILES


def build_cost_model(
    profile: str,
    hardware: HardwareConfig,
    shape: ModelShape,
    *,
    block_size: int,
    kv_dtype: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> RooflineModel | MeasuredModel:
    """The calibrated profile is what was measured, where the hardware names a file of that.

    Args:
      max_num_seqs, max_num_batched_tokens: limits of a step; measured times depend on how
        steps are padded.

    Raises:
      ValueError: the profile is not offered, the chip has no figures, or the calibration
        is damaged or of a model with other cache groups.
    """
    if profile not in PROFILES:
        raise ValueError(f"{profile=} is not offered; use one of {', '.join(PROFILES)}.")
    if profile == "ideal" or hardware.calibration is None:
        return RooflineModel(
            hardware, shape, block_size=block_size, kv_dtype=kv_dtype, profile=profile
        )
    calibration = load_calibration(hardware.calibration)
    num_groups = len(shape.layers_per_group)
    if calibration.num_groups != num_groups:
        raise ValueError(
            f"{hardware.calibration} was measured with {calibration.model}, whose cache "
            f"has num_groups={calibration.num_groups}; {shape.name} has {num_groups}. "
            "Calibrate with the model that is simulated."
        )
    return MeasuredModel(
        calibration,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
