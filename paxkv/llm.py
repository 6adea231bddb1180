"""`LLM`: text in, text out. The names are those that users of vLLM know."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral  # int, and the integers of numpy
from typing import Any, SupportsIndex

import numpy as np
from tqdm import tqdm

from paxkv.adapters import load_adapters
from paxkv.building import build_engine, context_limit
from paxkv.checks import integer, named
from paxkv.config import CacheConfig, EngineConfig, SchedulerConfig
from paxkv.models.loading import load_decoder
from paxkv.outputs import RequestOutput, RequestText
from paxkv.request_options import RequestOptions, require_options
from paxkv.sampling_params import SamplingParams, require_sampling_params
from paxkv.tokenizer import Tokenizer
from paxkv.types import FinishReason, RequestUpdate

Prompt = str | Sequence[SupportsIndex] | np.ndarray  # text, or token ids as they are
PROGRESS_FROM_PROMPTS = 2  # a bar for one prompt would be noise


class LLM:
    """A model, its tokenizer and an engine with a paged KV pool.

    Example:
      llm = LLM("path/to/model")
      for output in llm.generate(["k7=Qx;?k7:"], SamplingParams(max_tokens=3)):
          print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
        kv_cache_dtype: str | None = None,
        block_size: int = 16,
        num_blocks: int | None = None,
        gpu_memory_utilization: float = 0.9,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        implementation: str = "auto",
        seed: int = 0,
        cache: Mapping[str, Any] | None = None,
        scheduler: Mapping[str, Any] | None = None,
    ):
        """Loads the model and allocates the pool.

        Args:
          model: a checkpoint of this project, a Hugging Face directory or a GGUF file.
          tokenizer: where its tokenizer is, if not with the model.
          enable_prefix_caching: prompts share the K/V of equal prefixes.
          adapters: folders of LoRA adapters in PEFT's format, by the name that requests
            give (`llm.adapters.named`).
          kv_cache_dtype: that of the pool; by default `dtype`, that of the weights.
          num_blocks: blocks in the pool; by default as many as
            `gpu_memory_utilization` of the device's free memory holds.
          cache, scheduler: more fields of `CacheConfig` and `SchedulerConfig`: policies,
            tiers, fault modes.

        Raises:
          ValueError, FileNotFoundError: the model or a setting cannot be used; the
            message names the rule, the value and the remedy.
          TypeError: the model or the tokenizer is no path, or `cache` or `scheduler` has an
            unknown field, or one that is an argument here.
        """
        model = _path("model", model)
        tokenizer = model if tokenizer is None else _path("tokenizer", tokenizer)
        self.config = EngineConfig(
            model=model,
            seed=seed,
            implementation=implementation,
            max_context=max_model_len,
            cache=CacheConfig(
                block_size=block_size,
                num_blocks=num_blocks,
                memory_fraction=gpu_memory_utilization,
                dtype=dtype if kv_cache_dtype is None else kv_cache_dtype,
                prefix_caching=enable_prefix_caching,
                **(cache or {}),
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                **(scheduler or {}),
            ),
        )
        decoder = load_decoder(model, dtype)
        self.tokenizer = Tokenizer.load(tokenizer)
        self.adapters = load_adapters(adapters, decoder.config, dtype) if adapters else None
        self.engine, self.executor = build_engine(
            self.config,
            decoder,
            tokenizer_eos_ids=self.tokenizer.eos_token_ids,
            adapters=self.adapters,
        )
        self.max_context = context_limit(self.config, decoder.config.max_context)
        self._running: dict[int, RequestText] = {}
        self._news: dict[int, RequestOutput] = {}  # not yet taken by a reader

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Completes all prompts; outputs are in the order of the prompts.

        `options`, one for all or one per prompt, are priority, tenant, salt, adapter.

        A prompt that cannot be served does not stop the others: its output has
        `finish_reason == "error"` and says why in `message`. Interrupting cancels the
        requests and frees their blocks.

        Raises:
          ValueError: neither one of `sampling_params` or `options` nor one per prompt was
            given, or a text is no valid Unicode. Then nothing was started.
          TypeError: a prompt or one of these is something else. The same holds.
        """
        prompts = _as_list(prompts)
        settings = _one_each(sampling_params, len(prompts))
        each = _options_each(options, len(prompts))
        # all are encoded before the first is added, so that a bad text starts nothing
        encoded = [self._encode(prompt, index) for index, prompt in enumerate(prompts)]
        ids: list[int] = []
        finished: dict[int, RequestOutput] = {}
        show = use_tqdm and len(prompts) >= PROGRESS_FROM_PROMPTS
        try:
            for one in zip(prompts, encoded, settings, each, strict=True):
                ids.append(self._add(*one))
            with tqdm(total=len(prompts), unit="prompt", disable=not show) as bar:
                while len(finished) < len(ids):
                    for output in self._news_of(ids):
                        if output.finished:
                            finished[output.request_id] = output
                            bar.update()
        finally:
            self._drop(ids)
        return [finished[request_id] for request_id in ids]

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
    ) -> Iterator[RequestOutput]:
        """Yields the output so far whenever it grew. Closing the iterator cancels."""
        (settings,), (option,) = _one_each(sampling_params, 1), _options_each(options, 1)
        request_id = self._add(prompt, self._encode(prompt), settings, option)
        try:
            finished = False
            while not finished:
                for output in self._news_of([request_id]):
                    finished = output.finished
                    yield output
        finally:
            self._drop([request_id])

    def perplexity(self, text: str, *, use_tqdm: bool = True) -> float:
        """exp of the mean negative log-likelihood of the text's tokens.

        A text longer than the context is cut into windows as long as a prompt may be,
        each scored by itself; the first token of a window has no prediction.

        Raises:
          ValueError: the text has fewer than two tokens.
        """
        ids = self._encode(text)
        if len(ids) < 2:
            raise ValueError(f"a text of {len(ids)} tokens has none to score; give ≥ 2.")
        size = self.max_context - 1  # room for the one output token
        windows = [ids[start : start + size] for start in range(0, len(ids), size)]
        settings = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        outputs = self.generate(windows, settings, use_tqdm=use_tqdm)
        entries = [e for output in outputs for e in output.prompt_logprobs or ()]
        scored = [entry.logprob for entry in entries if entry is not None]
        return math.exp(-sum(scored) / len(scored))

    def abort(self, request_id: int) -> bool:
        """Cancels a request of a running `stream`; False if it had ended."""
        return self.engine.abort(request_id)

    def _encode(self, prompt: Any, index: int = 0) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt))
        return tuple(
            named(f"prompts[{index}][{position}]", token_id, _token_id)
            for position, token_id in enumerate(_list_of(f"prompts[{index}]", prompt))
        )

    def _add(
        self,
        prompt: Prompt,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        options: RequestOptions,
    ) -> int:
        text = prompt if isinstance(prompt, str) else None
        request_id = self.engine.add(prompt_ids, sampling, options=options)
        self._running[request_id] = RequestText(
            request_id, text, prompt_ids, sampling, self.tokenizer
        )
        return request_id

    def _news_of(self, ids: Sequence[int]) -> list[RequestOutput]:
        """Steps the engine if there is no news yet; takes that of `ids`, oldest first.

        News of other requests waits for whoever asks for it, so that streams may be
        read in turn.
        """
        if not any(request_id in self._news for request_id in ids):
            for update in self.engine.step().updates:
                self._take(update)
        return [self._news.pop(i) for i in ids if i in self._news]

    def _take(self, update: RequestUpdate) -> None:
        request_id = update.request_id
        if request_id not in self._running:
            return  # the last word on a request that its reader has left
        text = self._running[request_id]
        if text.add(update):
            self.engine.abort(request_id, FinishReason.STOP_STRING, update.sample_index)
        if text.finished:
            del self._running[request_id]
        self._news[request_id] = text.output()

    def _drop(self, ids: Sequence[int]) -> None:
        """Cancels what has not ended and forgets it."""
        for request_id in ids:
            if self._running.pop(request_id, None) is not None:
                self.engine.abort(request_id)
            self._news.pop(request_id, None)


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(
            f"{name}={value!r} is no path; give the directory or the file as str or Path."
        )
    if not os.fspath(value):
        raise ValueError(f"{name} is the empty path; give a directory or a file.")
    return os.fspath(value)


def _as_list(prompts: Any) -> list[Any]:
    """One prompt, as text or as token ids, is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    entries = _list_of("prompts", prompts)
    has_ids = any(isinstance(entry, Integral) for entry in entries)
    return [entries] if has_ids else entries


def _list_of(name: str, value: Any) -> list[Any]:
    """The entries of a sequence or an array; neither bytes nor a dict is meant as one."""
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(
        value, bytes | bytearray | memoryview
    ):
        return list(value)
    raise TypeError(
        f"{name} is of type {type(value).__name__}; give text or a list of token ids, or "
        "for several prompts a list of those."
    )


def _token_id(value: Any) -> int:
    return integer(value, "a prompt is text, or a list of token ids as integers")


def _one_each(sampling: Any, count: int) -> list[SamplingParams]:
    if sampling is None:
        sampling = SamplingParams()
    if not isinstance(sampling, Sequence) or isinstance(sampling, str | bytes):
        return [require_sampling_params(sampling)] * count
    if len(sampling) != count:
        raise ValueError(
            f"{len(sampling)} sampling_params for {count} prompts; give one, or one per "
            "prompt."
        )
    return [
        require_sampling_params(entry, f"sampling_params[{index}]")
        for index, entry in enumerate(sampling)
    ]


def _options_each(options: Any, count: int) -> list[RequestOptions]:
    listed = isinstance(options, Sequence) and not isinstance(options, str | bytes)
    each = list(options) if listed else [options] * count
    if len(each) != count:
        raise ValueError(
            f"{len(each)} options for {count} prompts; give one, or one per prompt."
        )
    return [require_options(one) for one in each]
