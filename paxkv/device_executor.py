"""Runs plans on a device: pack, one explicit transfer, one jitted step, one fetch."""

import time
from dataclasses import replace

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from paxkv.adapters import AdapterSet
from paxkv.attention import attention_options
from paxkv.cache import CachePlan
from paxkv.models.decoder import Decoder
from paxkv.sampling import SamplingFeatures
from paxkv.sampling_table import SamplingTable
from paxkv.sequence_tables import SequenceTables
from paxkv.step import StepOptions, StepOutput, step
from paxkv.step_inputs import Buckets, StepShape, pack
from paxkv.transfers import Transfers
from paxkv.types import Plan, StepResult


class DeviceExecutor:
    """Holds the weights and the pool; the pool is all that changes from step to step."""

    def __init__(
        self,
        decoder: Decoder,
        cache_plan: CachePlan,
        sampling: SamplingTable,
        buckets: Buckets,
        transfers: Transfers,
        *,
        device_name: str,
        implementation: str,
        matmul_precision: str,
        latent_prefill: str,
        adapters: AdapterSet | None = None,
    ):
        self.graph, self.params = nnx.split(decoder)
        self.cache_plan = cache_plan
        self.cache = cache_plan.allocate()
        self.sampling = sampling
        self.buckets = buckets
        self.adapters = adapters
        # by row of the tables; None: the step has no such input
        self.row_adapters = (
            None if adapters is None else np.zeros(buckets.decode_seqs[-1], np.int32)
        )
        self.transfers = transfers
        self.device_name = device_name
        self.options = StepOptions(
            attention=attention_options(
                decoder.config,
                implementation,
                device_kind=device_name,
                latent_prefill=latent_prefill,
            ),
            features=SamplingFeatures(),
            prompt_logprobs=None,
            matmul_precision=matmul_precision,
        )
        self._num_moved = 0  # moves that were done for a step that has not ended
        self.programs: set[tuple[StepShape, StepOptions, tuple]] = set()

    @property
    def num_programs(self) -> int:
        """Compiled programs that this executor's steps and moves have used."""
        return len(self.programs) + self.transfers.num_programs

    def run(self, plan: Plan) -> StepResult:
        """Moves the plan's blocks, then computes its slices; where one reaches its
        sequence's end, samples."""
        started_s = time.perf_counter()
        # a plan that follows a failed one begins with its moves
        self.cache = self.transfers.run(self.cache, plan.moves[self._num_moved :])
        self._num_moved = len(plan.moves)
        for row_start in plan.started:
            self.sampling.start(row_start)
            if self.adapters is not None and self.row_adapters is not None:
                number = self.adapters.number(row_start.options.adapter)
                self.row_adapters[row_start.row] = number
        if not len(plan.rows):
            self._num_moved = 0
            return StepResult(
                tokens=np.zeros(0, np.int32), duration_s=time.perf_counter() - started_s
            )
        shape = self.buckets.shape_for(plan.lengths)
        output = self._step(plan, shape)
        self._num_moved = 0
        num_slices = len(plan.rows)
        return StepResult(
            tokens=np.asarray(output.sampled.tokens[:num_slices]),
            logprobs=self.sampling.read_sampled(plan, output.sampled),
            prompt_logprobs=self.sampling.read_prompt(plan, output.prompt),
            duration_s=time.perf_counter() - started_s,
        )

    def warm_up(self, tables: SequenceTables) -> float:
        """Compiles greedy steps of all shapes, or loads them; returns seconds.

        Runs each on an empty plan: only the null block is written. Other sampling
        features compile when a request first asks for them.
        """
        started_s = time.perf_counter()
        plan = empty_plan(tables)
        for shape in tqdm(self.buckets.shapes, "compile", leave=False, delay=2):
            self._step(plan, shape)
        return time.perf_counter() - started_s

    def _step(self, plan: Plan, shape: StepShape) -> StepOutput:
        sampling, features = self.sampling.pack(plan, shape.num_seqs)
        options = replace(
            self.options,
            features=features,
            prompt_logprobs=self.sampling.prompt_logprobs(plan),
        )
        with_targets = options.prompt_logprobs is not None
        block_sizes = (self.cache_plan.block_size,) * len(self.cache)
        inputs = pack(plan, shape, block_sizes, with_targets, self.row_adapters)
        widths = tuple(map(np.shape, jax.tree.leaves(sampling)))  # lists have buckets too
        self.programs.add((shape, options, widths))
        self.cache, output = step(
            self.params,
            self.cache,
            *jax.device_put((inputs, sampling)),
            None if self.adapters is None else self.adapters.lora,
            graph=self.graph,
            options=options,
        )
        return jax.device_get(output)


def empty_plan(tables: SequenceTables) -> Plan:
    """A plan of no slices over these tables."""
    nothing = np.zeros(0, np.int32)
    return Plan(
        step=0,
        now_s=0.0,
        rows=nothing,
        starts=nothing,
        lengths=nothing,
        samples=nothing.astype(bool),
        requests=(),
        started=(),
        moves=(),
        tables=tables,
        num_prefill_tokens=0,
        num_decode_tokens=0,
        num_running=0,
        num_waiting=0,
        num_preempted=0,
        partitions=(),
    )
