"""vLLM's scheduler and KV cache manager on a recorded stream: the peer of bench_host, and
of the test that compares decisions.

`experiments.bench_host` starts it with an interpreter that has vLLM's needs and with vLLM's
source on PYTHONPATH. It reads a JSON object a line and answers each with one:

    {"op": "open", "name": ..., "what": "steps" or "manager", "recording": {...}, ...}
    {"op": "advance", "name": ..., "count": steps}  ->  {"seconds": {kind: [per step]}, ...}
    {"op": "close", "name": ...}
    {"op": "decide", "stream": {...}, ...}  ->  {"decisions": [per step]}

Standard output is the pipe: whatever vLLM prints goes to standard error.
"""

import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402
from vllm.config import (  # noqa: E402
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import (  # noqa: E402
    register_all_kvcache_specs,
)
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

# The smallest model whose class the source knows; its weights are never made.
MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "ffn_dim": 64,
    "vocab_size": 50272,
    "activation_function": "relu",
    "do_layer_norm_before": True,
}

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


def cache_of(num_blocks: int, block_size: int) -> KVCacheConfig:
    """One group of full attention."""
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


def config_of(opened: dict, folder: str) -> VllmConfig:
    """Of a scheduler with these limits; `folder` gets what passes for a model."""
    context = opened["max_context"]
    model = MODEL | {"max_position_embeddings": context}
    (Path(folder) / "config.json").write_text(json.dumps(model))
    cache = CacheConfig(
        block_size=opened["block_size"], enable_prefix_caching=opened["prefix_caching"]
    )
    cache.num_gpu_blocks = opened["num_blocks"]
    return VllmConfig(
        model_config=ModelConfig(
            model=folder, dtype="float32", skip_tokenizer_init=True, max_model_len=context
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=opened["max_num_seqs"],
            max_num_batched_tokens=opened["max_num_batched_tokens"],
            max_model_len=context,
            is_encoder_decoder=False,
            async_scheduling=False,
            watermark=opened["watermark"],
        ),
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
    )


def scheduler_of(opened: dict) -> Scheduler:
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(opened, folder)
    register_all_kvcache_specs(config)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache_of(opened["num_blocks"], opened["block_size"]),
        block_size=opened["block_size"],
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
    )


class Stream:
    """The recorded requests, as vLLM's own."""

    def __init__(self, opened: dict):
        recording = opened["recording"]
        self.steps = iter(recording.get("steps", ()))
        self.prompts = recording["prompts"]
        self.outputs = recording["outputs"]
        self.hasher = get_request_block_hasher(opened["block_size"], sha256)

    def request(self, index: int) -> Request:
        sampling = SamplingParams(max_tokens=len(self.outputs[index]), ignore_eos=True)
        return Request(
            request_id=str(index),
            prompt_token_ids=self.prompts[index],
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self.hasher,
        )


class Steps:
    """`schedule` and `update_from_output`; adding and sampling are not timed."""

    def __init__(self, opened: dict):
        self.stream = Stream(opened)
        self.clock = CLOCKS[opened["clock"]]
        recording = opened["recording"]
        limits = {
            "max_context": recording["max_context"],
            "max_num_seqs": recording["num_rows"],
            "prefix_caching": True,
            "watermark": 0.0,
        }
        self.scheduler = scheduler_of(opened | limits)
        self.num_outputs: dict[str, int] = {}

    def advance(self, seconds: dict[str, list[float]]) -> list[int]:
        step, scheduler = next(self.stream.steps), self.scheduler
        for index in step["admitted"]:
            scheduler.add_request(self.stream.request(index))
            self.num_outputs[str(index)] = 0
        start = self.clock()
        plan = scheduler.schedule()
        planned = self.clock()
        ids = list(plan.num_scheduled_tokens)
        tokens = []
        for name in ids:
            tokens.append([self.stream.outputs[int(name)][self.num_outputs[name]]])
            self.num_outputs[name] += 1
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: place for place, name in enumerate(ids)},
            sampled_token_ids=tokens,
        )
        before = self.clock()
        outcome = scheduler.update_from_output(plan, result)
        end = self.clock()
        seconds["plan"].append(planned - start)
        seconds["commit"].append(end - before)
        seconds["whole"].append(planned - start + end - before)
        return sorted(
            int(output.request_id)
            for outputs in outcome.values()
            for output in outputs.outputs
            if output.finish_reason is not None
        )


class Manager:
    """`get_computed_blocks`, `allocate_slots` and `free` alone. Making a request, with the
    hashes of its blocks, is timed as "make"; hashing generated tokens is not timed."""

    def __init__(self, opened: dict):
        self.stream = Stream(opened)
        self.clock = CLOCKS[opened["clock"]]
        self.manager = KVCacheManager(
            cache_of(opened["num_blocks"], opened["block_size"]),
            max_model_len=opened["recording"]["max_context"],
            scheduler_block_size=opened["block_size"],
            hash_block_size=opened["block_size"],
            enable_caching=True,
        )
        self.running: dict[int, Request] = {}

    def advance(self, seconds: dict[str, list[float]]) -> list[int]:
        step, manager = next(self.stream.steps), self.manager
        start = self.clock()
        for request in self.running.values():
            assert manager.allocate_slots(request, 1) is not None, "the pool is full"
            request.num_computed_tokens += 1
        decoded = self.clock()
        new = [self.stream.request(index) for index in step["admitted"]]
        made = self.clock()
        for request in new:
            manager.get_computed_blocks(request)
        looked_up = self.clock()
        for request in new:
            blocks, hit, _ = manager.get_computed_blocks(request)
            num_tokens = request.num_tokens
            given = manager.allocate_slots(request, num_tokens - hit, hit, blocks)
            assert given is not None, "the pool is full"
            request.num_computed_tokens = num_tokens
        admitted = self.clock()
        self.running |= zip(step["admitted"], new, strict=True)
        for index, request in self.running.items():
            token = self.stream.outputs[index][request.num_output_tokens]
            request.append_output_token_ids(token)
        before = self.clock()
        for index in step["finished"]:
            manager.free(self.running[index])
        end = self.clock()
        for index in step["finished"]:
            request = self.running.pop(index)
            assert request.num_output_tokens == len(self.stream.outputs[index])
        seconds["decode"].append(decoded - start)
        seconds["make"].append(made - decoded)
        seconds["look_up"].append(looked_up - made)
        seconds["admit"].append(admitted - looked_up)
        seconds["free"].append(end - before)
        return step["finished"]


def decide(asked: dict) -> list[dict]:
    """What the scheduler does with requests that come before given steps, until all have
    ended."""
    scheduler = scheduler_of(asked | {"max_context": asked["stream"]["max_context"]})
    stream = Stream(asked | {"recording": asked["stream"]})
    arriving, decisions = asked["stream"]["arriving"], []
    num_outputs: dict[str, int] = {}
    while len(decisions) < len(arriving) or scheduler.has_unfinished_requests():
        step = len(decisions)
        for index in arriving[step] if step < len(arriving) else ():
            scheduler.add_request(stream.request(index))
            num_outputs[str(index)] = 0
        plan = scheduler.schedule()
        ids, tokens = list(plan.num_scheduled_tokens), []
        for name in ids:
            request = scheduler.requests[name]
            samples = request.num_computed_tokens == request.num_tokens
            new = [stream.outputs[int(name)][num_outputs[name]]] if samples else []
            num_outputs[name] += len(new)
            tokens.append(new)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: place for place, name in enumerate(ids)},
            sampled_token_ids=tokens,
        )
        outcome = scheduler.update_from_output(plan, result)
        ended = [
            int(output.request_id)
            for outputs in outcome.values()
            for output in outputs.outputs
            if output.finish_reason is not None
        ]
        decisions.append(
            {
                "num_tokens": plan.num_scheduled_tokens,
                "preempted": sorted(int(name) for name in plan.preempted_req_ids or ()),
                "finished": sorted(ended),
                "num_free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            }
        )
    return decisions


def main() -> None:
    init_none_hash(sha256)
    from vllm.version import __version__

    replays: dict[str, Steps | Manager] = {}
    version = f"{__version__} on Python {platform.python_version()}"
    print(json.dumps({"vllm": version}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict = {}
        if asked["op"] == "open":
            make = Steps if asked["what"] == "steps" else Manager
            replays[asked["name"]] = make(asked)
            if asked["gc"] == "off":
                gc.disable()
            gc.collect()
            gc.freeze()
        elif asked["op"] == "decide":
            answer = {"decisions": decide(asked)}
        elif asked["op"] == "close":
            del replays[asked["name"]]
        else:
            seconds: dict[str, list[float]] = defaultdict(list)
            replay = replays[asked["name"]]
            finished = [replay.advance(seconds) for _ in range(asked["count"])]
            answer = {"seconds": seconds, "finished": finished}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # libraries that vLLM loads print pages about leaks when they are unloaded
