"""The chips that programs are compiled for, and how jax is told about each."""

import importlib.util
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Set before jax is imported. Unset what would answer from an earlier run instead.
_COMMON = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
_TPU = _COMMON | {
    "TPU_SKIP_MDS_QUERY": "1",  # else libtpu asks the cloud which TPU this is
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several targets at once
    "TPU_ACCELERATOR_TYPE": "v5e-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
_GPU = _COMMON | {
    "MOSAIC_GPU_DUMP_PTXAS": "1",
    "LLVM_DISABLE_SYMBOLIZATION": "1",  # of stack traces that nobody reads, for minutes
}
REMEDY = "make the environment with `bash scripts/compile.sh` and run in that"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChip:
    """What XLA must know to compile for a GPU; from the vendor's data sheets."""

    description: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    float32_units: int  # of a multiprocessor
    shared_bytes: int  # of a multiprocessor; a block may have 1 KiB less
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_s: int
    l2_bytes: int

    def target_config(self) -> str:
        """A GpuTargetConfigProto as text."""
        major, minor = self.compute_capability
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_bytes}
  threads_per_core_limit: 2048
  core_count: {self.multiprocessors}
  fpus_per_core: {self.float32_units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.memory_bytes_per_s}
  l2_cache_size: {self.l2_bytes}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes}
  shared_memory_per_block_optin: {self.shared_bytes - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.description}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of chip."""

    name: str
    platform: str  # cpu, gpu or tpu, as pool layouts name it
    implementations: tuple[str, ...]
    topology: str = ""  # of a single chip, where there is one
    topology_options: dict[str, str] = field(default_factory=dict)
    sharded_topology: str = ""  # of the smallest group that shares a model
    environment: dict[str, str] = field(default_factory=lambda: _COMMON)
    gpu: GpuChip | None = None

    def devices(self, *, sharded: bool = False) -> list[Any]:
        """Devices to compile for; none of them exists."""
        import jax
        from jax.experimental import topologies

        if self.platform == "cpu":
            return jax.devices("cpu")[:1]
        if self.gpu is None:
            name = self.sharded_topology if sharded else self.topology
            return topologies.get_topology_desc(
                platform="tpu", topology_name=name, **self.topology_options
            ).devices
        importlib.import_module(f"jax_plugins.{cuda_plugin()}")  # registers itself
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=self.name,
            topology="1x1x1",
            target_config=self.gpu.target_config(),
        ).devices

    @contextmanager
    def lowering(self, devices: list[Any]) -> Generator[None]:
        """In which programs for these devices are traced and compiled."""
        if self.gpu is None:
            yield
            return
        import jax
        import numpy as np

        # from jax 0.11 on, a GPU that does not exist is known only through a mesh
        mesh = jax.sharding.Mesh(np.asarray(devices[:1]), ("x",))
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            yield


def cuda_plugin() -> str | None:
    """The module of jax's CUDA plugin, of either CUDA version; None if there is none."""
    if importlib.util.find_spec("jax_plugins") is None:
        return None
    for name in ("xla_cuda13", "xla_cuda12"):
        if importlib.util.find_spec(f"jax_plugins.{name}") is not None:
            return name
    return None


def missing(target: Target) -> str | None:
    """What this Python lacks to compile for the target, and the remedy; None if nothing."""
    if target.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        return f"--target={target.name} needs libtpu, which this Python lacks; {REMEDY}."
    if target.platform == "gpu" and cuda_plugin() is None:
        return (
            f"--target={target.name} needs jax-cuda13-plugin or jax-cuda12-plugin, which "
            f"this Python lacks; {REMEDY}."
        )
    return None


A100 = GpuChip(
    description="NVIDIA A100-SXM4-80GB",
    compute_capability=(8, 0),
    multiprocessors=108,
    float32_units=64,
    shared_bytes=164 * 1024,
    clock_ghz=1.41,
    memory_bytes=85_094_000_000,
    memory_bytes_per_s=2_039_000_000_000,
    l2_bytes=40 * 2**20,
)
H100 = GpuChip(
    description="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    multiprocessors=132,
    float32_units=128,
    shared_bytes=228 * 1024,
    clock_ghz=1.98,
    memory_bytes=84_978_434_048,
    memory_bytes_per_s=3_352_320_000_000,
    l2_bytes=50 * 2**20,
)
B200 = GpuChip(
    description="NVIDIA B200",
    compute_capability=(10, 0),
    multiprocessors=148,
    float32_units=128,
    shared_bytes=228 * 1024,
    clock_ghz=1.965,
    memory_bytes=191_500_000_000,
    memory_bytes_per_s=8_000_000_000_000,
    l2_bytes=126 * 2**20,
)


def _tpu(name: str, topology: str, sharded_topology: str, **options: str) -> Target:
    return Target(
        name=name,
        platform="tpu",
        implementations=("tpu", "xla"),
        topology=topology,
        topology_options=options,
        sharded_topology=sharded_topology,
        environment=_TPU,
    )


def _gpu(name: str, chip: GpuChip, implementations: tuple[str, ...]) -> Target:
    return Target(
        name=name,
        platform="gpu",
        implementations=implementations,
        environment=_GPU,
        gpu=chip,
    )


TARGETS = {
    target.name: target
    for target in (
        # else each of the two cores of a chip would be a device, with half of its memory
        _tpu("v4", "v4:2x2x1", "v4:2x2x1", chip_config_name="megacore"),
        _tpu("v5e", "v5e:1x1", "v5e:2x2"),
        _tpu("v5p", "v5p:2x2x1", "v5p:2x2x1"),
        _tpu("v6e", "v6e:1x1", "v6e:2x2"),
        _gpu("h100", H100, ("gpu", "gpu_triton", "xla")),
        _gpu("a100", A100, ("gpu_triton", "xla")),  # Mosaic GPU begins with Hopper
        _gpu("b200", B200, ("gpu", "gpu_triton", "xla")),
        Target(name="cpu", platform="cpu", implementations=("cpu", "xla")),
    )
}
