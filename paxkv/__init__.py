"""paxkv: PagedAttention in JAX as a research framework.

    from paxkv import LLM, SamplingParams

    llm = LLM("paxkv/assets/recall")
    for output in llm.generate(["k7=Qx;a3=Ab;?a3:"], SamplingParams(max_tokens=3)):
        print(output.outputs[0].text)

Axis letters in shape annotations mean the same everywhere:

    T  tokens in the step (all slices of the ragged plan, end to end)
    S  sequences in the step; S1 = S + 1
    P  blocks per sequence (columns of a block table)
    B  block size, in tokens
    N  blocks in the pool, the null block included
    L  layers
    H  query heads
    K  kv heads; G = H / K query heads read each of them
    D  head size
    R  rows per token in the cache; logically 2K, interleaved K, V, K, V
    V  vocabulary

Importing this package, or any module of its host core, loads no jax: the names below
are resolved on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
    from paxkv.engine import Engine
    from paxkv.llm import LLM
    from paxkv.outputs import RequestOutput
    from paxkv.request_options import RequestOptions
    from paxkv.sampling_params import SamplingParams
    from paxkv.types import FinishReason

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CacheConfig",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
]

_MODULE_OF_NAME = {
    "LLM": "paxkv.llm",
    "CacheConfig": "paxkv.config",
    "Engine": "paxkv.engine",
    "EngineConfig": "paxkv.config",
    "FinishReason": "paxkv.types",
    "RequestOptions": "paxkv.request_options",
    "RequestOutput": "paxkv.outputs",
    "SamplingParams": "paxkv.sampling_params",
    "SchedulerConfig": "paxkv.config",
}


def __getattr__(name: str) -> Any:
    """Imports the module of a public name on its first use (PEP 562)."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'paxkv' has no attribute {name!r}; it has {__all__}.")
    value = getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
