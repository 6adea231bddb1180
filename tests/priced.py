"""Models, chips and steps that the tests of cost models share."""

import importlib.util
from pathlib import Path
from typing import Any

from paxkv.simulation.hardware import HardwareConfig
from paxkv.simulation.model_shape import ModelShape
from paxkv.simulation.work import StepWork

CONFIGS = Path(__file__).parents[1] / "configs"


def config_tree(folder: str, name: str) -> dict[str, Any]:
    """What a config file says."""
    spec = importlib.util.spec_from_file_location(name, CONFIGS / folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config().to_dict()


def shape_of(preset: str, **changes: Any) -> ModelShape:
    return ModelShape(**config_tree("models", preset) | changes)


def hardware_of(preset: str, **changes: Any) -> HardwareConfig:
    return HardwareConfig(**config_tree("chips", preset) | changes)


def decodes(count: int, context: int, block_size: int = 16, **more: Any) -> StepWork:
    """So many decodes of one context, in one cache group."""
    fields: dict[str, Any] = dict(
        num_seqs=count,
        num_decode_tokens=count,
        num_prefill_tokens=0,
        decode_context_tokens=(count * context,),
        decode_read_tokens=(count * -(-context // block_size) * block_size,),
        prefill_pairs=(0,),
        prefill_context_tokens=(0,),
    )
    return StepWork(**fields | more)


def prefill(num_tokens: int, num_decodes: int = 0, context: int = 0) -> StepWork:
    """One whole prompt beside decodes, in one cache group."""
    return decodes(
        num_decodes,
        context,
        num_seqs=num_decodes + 1,
        num_prefill_tokens=num_tokens,
        prefill_pairs=(num_tokens * (num_tokens + 1) // 2,),
        prefill_context_tokens=(num_tokens,),
    )


def moves(**counts: int) -> StepWork:
    """A step that only moves blocks."""
    return decodes(0, 0, **counts)
