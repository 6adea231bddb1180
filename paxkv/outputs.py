"""What a caller gets back, and how token news becomes text. Names are vLLM's."""

from collections.abc import Mapping
from dataclasses import dataclass

from paxkv.detokenizer import TextStream
from paxkv.sampling_params import SamplingParams
from paxkv.tokenizer import Tokenizer
from paxkv.types import (
    Finish,
    FinishReason,
    RequestMetrics,
    RequestUpdate,
    TokenLogprobs,
)

# the short word that users of OpenAI's API and of vLLM know
FINISH_WORDS: Mapping[FinishReason, str] = {
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORTED: "abort",
    FinishReason.REJECTED_EMPTY: "error",
    FinishReason.REJECTED_BAD_TOKEN: "error",
    FinishReason.REJECTED_TOO_LONG: "error",
    FinishReason.REJECTED_NEVER_FITS: "error",
    FinishReason.REJECTED_NO_ADAPTER: "error",
    FinishReason.REJECTED_POOL_FULL: "error",
    FinishReason.DROPPED_POOL_FULL: "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """The generated text of a request, so far or complete."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    cumulative_logprob: float | None
    finish_reason: str | None  # stop, length, abort, error; None while it runs
    message: str | None  # the same as a sentence
    stop_reason: int | str | None  # the stop token or string that was met
    score: float | None = None  # of best_of and beams: what outputs are ranked by


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request, as the caller sees it."""

    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None  # the first token has none
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    metrics: RequestMetrics | None  # once finished


class SampleText:
    """Collects the updates of one sample; text is released when it is certain."""

    def __init__(self, index: int, sampling: SamplingParams, tokenizer: Tokenizer | None):
        self.index = index
        self.sampling = sampling
        self.stream = TextStream(tokenizer, sampling) if tokenizer else None
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish: Finish | None = None
        self.stop_reason: int | str | None = None
        self.score: float | None = None

    def add(self, update: RequestUpdate) -> bool:
        """Takes in one update. True: a stop string was met and the sample must end."""
        if self.finish is not None:
            return False
        met = self._add_tokens(update)
        if update.finish is not None:
            self.score = update.score
            self._end(update.finish)
            return False
        return met

    def output(self) -> CompletionOutput:
        """The state so far, as an immutable value."""
        asked = self.sampling.logprobs is not None
        likelihood = sum(entry.logprob for entry in self.logprobs) if asked else None
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs) if asked else None,
            cumulative_logprob=likelihood,
            finish_reason=FINISH_WORDS[self.finish.reason] if self.finish else None,
            message=self.finish.message if self.finish else None,
            stop_reason=self.stop_reason,
            score=self.score,
        )

    def _add_tokens(self, update: RequestUpdate) -> bool:
        for index, token_id in enumerate(update.new_token_ids):
            self.token_ids.append(token_id)
            if update.logprobs:
                self.logprobs.append(update.logprobs[index])
            if self.stream is None or self._is_stop_token(token_id, index, update):
                continue
            self.text += self.stream.push(token_id)
            if self.stream.stop_string is not None:
                self.stop_reason = self.stream.stop_string
                return True
        return False

    def _is_stop_token(self, token_id: int, index: int, update: RequestUpdate) -> bool:
        stopped = (
            update.finish is not None
            and update.finish.reason is FinishReason.STOP_TOKEN
            and index == len(update.new_token_ids) - 1
        )
        if stopped:
            self.stop_reason = token_id
        return stopped

    def _end(self, finish: Finish) -> None:
        if self.stream is not None and self.stream.stop_string is None:
            self.text += self.stream.flush()
        if self.stream is not None and self.stream.stop_string is not None:
            self.stop_reason = self.stream.stop_string
            reason = FinishReason.STOP_STRING  # also if the last token met max_tokens
            finish = Finish(reason=reason, message=reason.value)
        self.finish = finish


class RequestText:
    """Collects the updates of one request, of one sample or several."""

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        tokenizer: Tokenizer | None,
    ):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_ids = prompt_ids
        self.sampling = sampling
        self.samples = [
            SampleText(index, sampling, tokenizer) for index in range(sampling.n)
        ]
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        self.finished = False
        self.metrics: RequestMetrics | None = None

    def add(self, update: RequestUpdate) -> bool:
        """Takes in one update. True: a stop string was met and the sample must end."""
        self.prompt_logprobs.extend(update.prompt_logprobs)
        met = self.samples[update.sample_index].add(update)
        if update.metrics is not None and self.metrics is None:
            self.metrics = update.metrics
        if update.ends_request:
            self.finished = True
            self.metrics = update.metrics
            for sample in self.samples:  # those that never began, if it ended early
                if sample.finish is None and update.finish is not None:
                    sample.finish = update.finish
        return met

    def output(self) -> RequestOutput:
        """The state so far, as an immutable value."""
        asked_prompt = self.sampling.prompt_logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            prompt_logprobs=tuple(self.prompt_logprobs) if asked_prompt else None,
            outputs=tuple(sample.output() for sample in self.samples),
            finished=self.finished,
            metrics=self.metrics,
        )
