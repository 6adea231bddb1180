"""The sampling settings of all running requests as host arrays, packed step by step."""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from paxkv.sampling import SampleOutput, SamplingFeatures, SamplingInputs
from paxkv.sampling_params import MAX_LOGPROBS, SamplingParams
from paxkv.types import MAX_CANDIDATES, Plan, RowStart, TokenLogprobs

# beams ask for as many as they have, and stop tokens besides
LOGPROB_WIDTHS = (0, 5, MAX_LOGPROBS, 64, MAX_CANDIDATES)
SMALLEST_WIDTH, WIDTH_STEP = 8, 8  # of lists of ids: 0, 8, 64, 512, ...
# vLLM's too: below it a temperature is greedy, so that no logit is divided by nearly 0
GREEDY_BELOW = 1e-5
NOT_ASKED = -1  # of log-probabilities


class SamplingTable:
    """Settings per row of the persistent tables; `start` loads a row, `pack` reads."""

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        engine_seed: int,
        eos_token_ids: Sequence[int],
    ):
        self.vocab_size = vocab_size
        self.engine_seed = engine_seed
        self.eos_token_ids = tuple(eos_token_ids)
        self._values = _neutral_rows(max_num_seqs, vocab_size)
        self._uses_penalties = np.zeros(max_num_seqs, bool)
        self._uses_bias = np.zeros(max_num_seqs, bool)
        self._min_tokens = np.zeros(max_num_seqs, np.int32)
        self._logprobs = np.full(max_num_seqs, NOT_ASKED, np.int32)
        self._prompt_logprobs = np.full(max_num_seqs, NOT_ASKED, np.int32)
        no_ids, no_values = np.zeros(0, np.int32), np.zeros(0, np.float32)
        self._bias_ids = [no_ids] * max_num_seqs
        self._bias_values = [no_values] * max_num_seqs
        self._stop_ids = [no_ids] * max_num_seqs

    def start(self, row_start: RowStart) -> None:
        """The row now belongs to this request."""
        row, sampling = row_start.row, row_start.sampling
        settings = _settings(sampling, self.vocab_size)
        settings["num_prompt"] = row_start.num_prompt_tokens
        settings["sample_indices"] = row_start.sample_index
        settings["seeds"] = seed_words(
            sampling.seed, self.engine_seed, row_start.request_id
        )
        for name, value in settings.items():
            self._values[name][row] = value
        self._uses_penalties[row] = (
            sampling.repetition_penalty != 1
            or sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
        )
        biases = dict(sampling.logit_bias or ())
        self._uses_bias[row] = bool(biases)
        self._bias_ids[row] = np.array(list(biases), np.int32)
        self._bias_values[row] = np.array(list(biases.values()), np.float32)
        self._min_tokens[row] = sampling.min_tokens
        # with ignore_eos too, as in vLLM: min_tokens is also the way to ban EOS
        stop_ids = {*self.eos_token_ids, *sampling.stop_token_ids}
        self._stop_ids[row] = np.array(sorted(stop_ids), np.int32)
        self._logprobs[row] = _or_not_asked(row_start.num_top)
        self._prompt_logprobs[row] = _or_not_asked(sampling.prompt_logprobs)

    def pack(
        self, plan: Plan, num_rows_padded: int
    ) -> tuple[SamplingInputs, SamplingFeatures]:
        """Numpy inputs of `sample`, padded to S rows, row i for slice i of the plan.

        Slices that do not sample and padded rows are greedy and ask for nothing.
        """
        slices = np.flatnonzero(plan.samples)
        rows = plan.rows[slices]
        arrays = _neutral_rows(num_rows_padded, self.vocab_size)
        for name, values in self._values.items():
            arrays[name][slices] = values[rows]
        new_positions = (plan.starts + plan.lengths)[slices]
        arrays["positions"][slices] = new_positions

        num_generated = new_positions - self._values["num_prompt"][rows]
        is_banning = num_generated < self._min_tokens[rows]
        has_bias = self._uses_bias[rows]
        pad = self.vocab_size
        lists = {
            "bias_ids": (_pick(self._bias_ids, rows, has_bias), pad),
            "bias_values": (_pick(self._bias_values, rows, has_bias), 0.0),
            "banned_ids": (_pick(self._stop_ids, rows, is_banning), pad),
        }
        for name, (ragged, padding) in lists.items():
            arrays[name] = _padded(ragged, slices, num_rows_padded, padding)
        has_penalties = self._uses_penalties[rows]
        arrays["history"] = self._history(
            plan, slices[has_penalties], new_positions[has_penalties], num_rows_padded
        )
        features = SamplingFeatures(
            random=bool((arrays["temperature"] > 0).any()),
            truncation=bool(
                (arrays["top_k"] < self.vocab_size).any()
                or (arrays["top_p"] < 1).any()
                or (arrays["min_p"] > 0).any()
            ),
            penalties=bool(has_penalties.any()),
            bias=bool(arrays["bias_ids"].size or arrays["banned_ids"].size),
            logprobs=_logprob_width(self._logprobs[rows]),
        )
        return SamplingInputs(**arrays), features

    def prompt_logprobs(self, plan: Plan) -> int | None:
        """Alternatives per prompt token that this step must give; None: not asked.

        A slice gives those of prompt tokens [start + 1, start + length].
        """
        has_prompt = plan.starts + 1 < self._values["num_prompt"][plan.rows]
        return _logprob_width(self._prompt_logprobs[plan.rows[has_prompt]])

    def read_sampled(
        self, plan: Plan, output: SampleOutput
    ) -> tuple[TokenLogprobs | None, ...]:
        """Per slice, of the token that it sampled, if its request asked; () if none did."""
        if not len(output.logprobs):
            return ()
        asked = np.where(plan.samples, self._logprobs[plan.rows], NOT_ASKED).tolist()
        return tuple(
            None if count == NOT_ASKED else read_logprobs(output, index, count)
            for index, count in enumerate(asked)
        )

    def read_prompt(
        self, plan: Plan, output: SampleOutput | None
    ) -> tuple[tuple[TokenLogprobs, ...] | None, ...]:
        """Per slice, of its prompt tokens [start + 1, start + length]; () if none asked."""
        if output is None:
            return ()
        asked = self._prompt_logprobs[plan.rows].tolist()
        in_prompt = self._values["num_prompt"][plan.rows] - 1 - plan.starts
        counts = np.clip(in_prompt, 0, plan.lengths).tolist()
        firsts = (np.cumsum(plan.lengths) - plan.lengths).tolist()  # index in the step
        return tuple(
            None
            if num_top == NOT_ASKED
            else tuple(read_logprobs(output, first + i, num_top) for i in range(count))
            for num_top, first, count in zip(asked, firsts, counts, strict=True)
        )

    def _history(
        self, plan: Plan, slices: np.ndarray, num_known: np.ndarray, num_rows: int
    ) -> np.ndarray:
        """All known tokens of the slices that have penalties, int32 [S, M]."""
        if not len(slices):
            return np.zeros((num_rows, 0), np.int32)
        tokens = plan.tables.tokens
        width = min(_width(int(num_known.max())), tokens.shape[1])
        known = tokens[plan.rows[slices], :width]
        history = np.full((num_rows, width), self.vocab_size, np.int32)
        is_known = np.arange(width) < num_known[:, None]
        history[slices] = np.where(is_known, known, self.vocab_size)
        return history


def seed_words(seed: int | None, engine_seed: int, request_id: int) -> tuple[int, int]:
    """High and low 32 bits of the request's seed: its own, or a hash of the two others.

    A seed below 2^32 gives the key of `jax.random.key(seed)`.
    """
    if seed is None:
        name = f"{engine_seed} {request_id}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    high, low = struct.unpack(">II", seed.to_bytes(8, "big"))
    return high, low


def read_logprobs(output: SampleOutput, index: int, num_top: int) -> TokenLogprobs:
    """Entry `index` of a fetched output, with the alternatives that were asked for."""
    return TokenLogprobs(
        token_id=int(output.tokens[index]),
        logprob=float(output.logprobs[index]),
        rank=int(output.ranks[index]),
        top_ids=tuple(output.top_ids[index, :num_top].tolist()),
        top_logprobs=tuple(output.top_logprobs[index, :num_top].tolist()),
    )


def _neutral_rows(count: int, vocab_size: int) -> dict[str, np.ndarray]:
    """The 1-D inputs (and the seeds) of rows that are greedy and ask for nothing."""
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    return {
        "temperature": zeros.copy(),
        "top_k": np.full(count, vocab_size, np.int32),
        "top_p": ones.copy(),
        "min_p": zeros.copy(),
        "repetition_penalty": ones.copy(),
        "presence_penalty": zeros.copy(),
        "frequency_penalty": zeros.copy(),
        "seeds": np.zeros((count, 2), np.uint32),
        "sample_indices": np.zeros(count, np.int32),
        "positions": np.zeros(count, np.int32),
        "num_prompt": np.zeros(count, np.int32),
    }


def _settings(sampling: SamplingParams, vocab_size: int) -> dict:
    """The row's 1-D inputs. Truncation never changes an argmax: off in greedy rows."""
    is_random = sampling.temperature >= GREEDY_BELOW
    has_top_k = is_random and 0 < sampling.top_k < vocab_size
    return {
        "temperature": sampling.temperature if is_random else 0.0,
        "top_k": sampling.top_k if has_top_k else vocab_size,
        "top_p": sampling.top_p if is_random else 1.0,
        "min_p": sampling.min_p if is_random else 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def _or_not_asked(count: int | None) -> int:
    return NOT_ASKED if count is None else count


def _logprob_width(asked: np.ndarray) -> int | None:
    """The smallest offered number of alternatives that serves all rows."""
    most = int(asked.max(initial=NOT_ASKED))
    if most == NOT_ASKED:
        return None
    return next(width for width in LOGPROB_WIDTHS if width >= most)


def _pick(ragged: list[np.ndarray], rows: np.ndarray, wanted: np.ndarray) -> list:
    return [ragged[row] if use else () for row, use in zip(rows, wanted, strict=True)]


def _width(count: int) -> int:
    """The next of 0, 8, 64, 512, ...: few widths, so few compiled programs."""
    if count == 0:
        return 0
    width = SMALLEST_WIDTH
    while width < count:
        width *= WIDTH_STEP
    return width


def _padded(
    ragged: list, slices: np.ndarray, num_rows: int, padding: int | float
) -> np.ndarray:
    """Lists of the given slices as one array of `num_rows` rows."""
    dtype = np.int32 if isinstance(padding, int) else np.float32
    width = _width(max(map(len, ragged), default=0))
    padded = np.full((num_rows, width), padding, dtype)
    for index, values in zip(slices, ragged, strict=True):
        padded[index, : len(values)] = values
    return padded
