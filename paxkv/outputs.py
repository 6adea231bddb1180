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


class RequestText:
    """Collects the updates of one request; text is released when it is certain."""

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
        self.stream = TextStream(tokenizer, sampling) if tokenizer else None
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        self.finish: Finish | None = None
        self.stop_reason: int | str | None = None
        self.metrics: RequestMetrics | None = None

    def add(self, update: RequestUpdate) -> bool:
        """Takes in one update. True: a stop string was met and the request must end."""
        met = self._add_tokens(update)
        self.prompt_logprobs.extend(update.prompt_logprobs)
        if update.finish is not None:
            self._end(update.finish, update.metrics)
            return False
        return met

    def _add_tokens(self, update: RequestUpdate) -> bool:
        for index, token_id in enumerate(update.new_token_ids):
            self.token_ids.append(token_id)
            if update.logprobs:
                self.logprobs.append(update.logprobs[index])
            if self.stream is None or self._is_stop_token(token_id, update):
                continue
            self.text += self.stream.push(token_id)
            if self.stream.stop_string is not None:
                self.stop_reason = self.stream.stop_string
                return True
        return False

    def _is_stop_token(self, token_id: int, update: RequestUpdate) -> bool:
        stopped = (
            update.finish is not None
            and update.finish.reason is FinishReason.STOP_TOKEN
            and token_id == update.new_token_ids[-1]
        )
        if stopped:
            self.stop_reason = token_id
        return stopped

    def _end(self, finish: Finish, metrics: RequestMetrics | None) -> None:
        if self.stream is not None and self.stream.stop_string is None:
            self.text += self.stream.flush()
        if self.stream is not None and self.stream.stop_string is not None:
            self.stop_reason = self.stream.stop_string
            reason = FinishReason.STOP_STRING  # also if the last token met max_tokens
            finish = Finish(reason=reason, message=reason.value)
        self.finish, self.metrics = finish, metrics

    def output(self) -> RequestOutput:
        """The state so far, as an immutable value."""
        asked = self.sampling.logprobs is not None
        asked_prompt = self.sampling.prompt_logprobs is not None
        completion = CompletionOutput(
            index=0,
            text=self.text,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs) if asked else None,
            cumulative_logprob=(
                sum(entry.logprob for entry in self.logprobs) if asked else None
            ),
            finish_reason=FINISH_WORDS[self.finish.reason] if self.finish else None,
            message=self.finish.message if self.finish else None,
            stop_reason=self.stop_reason,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            prompt_logprobs=tuple(self.prompt_logprobs) if asked_prompt else None,
            outputs=(completion,),
            finished=self.finish is not None,
            metrics=self.metrics,
        )
