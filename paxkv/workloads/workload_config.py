"""Settings of a workload. Frozen and checked when made."""

from collections.abc import Mapping
from dataclasses import dataclass

from paxkv.checks import (
    Check,
    flag,
    integer_in,
    keep_checked,
    number_where,
    one_of,
    optional,
)
from paxkv.workloads.arrivals import ARRIVALS, WITH_RATE
from paxkv.workloads.lengths import SHAREGPT_CONTEXT
from paxkv.workloads.traces.formats import AUTO, FORMATS

LENGTHS = ("sharegpt", "alpaca", "wmt16", "fixed", "lognormal")
STRUCTURE_NAMES = ("single", "chat", "open_chat", "agents", "shared_prefix", "rag", "trace")
TOO_LONG = ("refuse", "clip", "scale", "drop")
MOST_TOKENS = 2**31 - 1  # of any one length
MOST_TURNS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """A workload, drawn again from the same seed.

    Arrivals, lengths and structure have random numbers of their own: another rate leaves
    the requests as they are, and a longer workload begins with a shorter one.
    """

    num_requests: int | None  # sessions; None: all of a trace
    seed: int = 0
    # when sessions begin: all at once, with gaps of some distribution, when one of
    # `concurrency` users is free ("closed_loop"), or when the trace says
    arrival: str = "at_once"
    rate_per_s: float | int = 1.0  # of "poisson", "gamma" and "uniform"
    burstiness_cv: float | int = 1.0  # of "gamma": deviation of the gaps over their mean
    concurrency: int = 1  # of "closed_loop"
    rate_scale: float | int = 1.0  # of "trace"; 2: twice as many requests a second
    structure: str = "single"
    lengths: str = "sharegpt"  # of prompts, or of what turns add to them, and of outputs
    input_tokens: int = 512  # of "fixed"; mean of "lognormal"
    output_tokens: int = 128
    input_sigma: float | int = 1.0  # of "lognormal", of the logarithm
    output_sigma: float | int = 1.0
    # of "chat" and "agents", equally likely; of a trace of conversations, max_turns
    min_turns: int = 1
    max_turns: int = 1
    think_s: float | int = 0.0  # mean; between two turns, exponential
    new_conversations: float | int = 1.0  # of "open_chat": share of the requests
    max_prompt_tokens: int | None = None  # newest tokens that a prompt keeps; None: all
    # beginning of all prompts ("chat", "rag"), or of those with the same prefix
    shared_tokens: int = 0
    num_prefixes: int = 1  # of "shared_prefix"; kinds of "agents"
    popularity_exponent: float | int = 1.0  # of Zipf's law, for prefixes and documents
    tool_tokens: int = 256  # of "agents": mean of the lognormal outputs of tools
    tool_sigma: float | int = 0.5
    num_documents: int = 1_000  # of "rag"
    documents_per_request: int = 4
    document_tokens: int = 512
    num_samples: int = 1  # outputs of each request, or width of its beams
    use_beam_search: bool = False
    # of a session that exceeds the model's context: an error, cut, left out, or all lengths
    # of the workload are scaled down from a context of `scale_from_tokens`, then cut
    too_long: str = "refuse"
    scale_from_tokens: int | None = None  # None: that of "sharegpt" and "alpaca"
    trace_path: str | None = None
    trace_format: str = AUTO  # by the first line; or a name in traces.formats.FORMATS
    sort_trace: bool = False  # by arrival; else rows out of order are malformed
    max_malformed: int | None = 0  # rows; more are an error. None: any number

    def __post_init__(self):
        keep_checked(self, _CHECKS, "workload.")
        self._check_trace()
        self._check_structure()

    def _check_trace(self) -> None:
        is_trace = self.structure == "trace"
        if is_trace and self.trace_path is None:
            raise ValueError(
                "workload.structure='trace' needs a file; set workload.trace_path."
            )
        if not is_trace and self.trace_path is not None:
            raise ValueError(
                f"workload.trace_path={self.trace_path!r} is read by structure='trace', "
                f"not by {self.structure!r}; set one of the two."
            )
        if not is_trace and self.arrival == "trace":
            raise ValueError(
                "workload.arrival='trace' needs structure='trace', not "
                f"{self.structure!r}; use one of {', '.join(ARRIVALS[:-1])}."
            )
        if not is_trace and self.num_requests is None:
            raise ValueError(
                f"workload.num_requests=None needs structure='trace', not "
                f"{self.structure!r}, which has no end; give a number."
            )

    def _check_structure(self) -> None:
        if self.min_turns > self.max_turns:
            raise ValueError(
                f"workload.min_turns={self.min_turns} must be at most max_turns="
                f"{self.max_turns}; raise max_turns."
            )
        if self.documents_per_request > self.num_documents:
            raise ValueError(
                f"workload.documents_per_request={self.documents_per_request} must be at "
                f"most num_documents={self.num_documents}; raise num_documents."
            )
        if self.structure == "shared_prefix" and not self.shared_tokens:
            raise ValueError(
                "workload.shared_tokens=0 gives structure='shared_prefix' no prefix; use "
                "≥ 1, or structure='single'."
            )
        if self.max_turns > 1 and self.structure not in ("chat", "agents", "trace"):
            raise ValueError(
                f"workload.max_turns={self.max_turns} needs structure 'chat', 'agents' or "
                f"'trace', not {self.structure!r}, whose sessions have one turn."
            )
        if self.too_long == "scale" and self.scale_from is None:
            raise ValueError(
                f"workload.too_long='scale' needs scale_from_tokens, the context that "
                f"structure={self.structure!r} with lengths={self.lengths!r} was made for; "
                "set it, or use 'refuse', 'clip' or 'drop'."
            )

    @property
    def users(self) -> int | None:
        """How many sessions run at once, at most; None: arrivals ask for no bound."""
        return self.concurrency if self.arrival == "closed_loop" else None

    @property
    def scale_from(self) -> int | None:
        """Tokens of the context from which lengths are scaled, if known."""
        if self.scale_from_tokens is None and self.structure == "single":
            return SHAREGPT_CONTEXT if self.lengths in ("sharegpt", "alpaca") else None
        return self.scale_from_tokens


def offered_rate_per_s(config: WorkloadConfig) -> float | None:
    """Sessions that begin each second in the mean; None: not known before the run."""
    return float(config.rate_per_s) if config.arrival in WITH_RATE else None


def _positive(remedy: str, most: float = 1e9) -> Check:
    return number_where(lambda x: 1e-9 <= x <= most, f"in [1e-9, {most:g}]", remedy)


def _sigma(value: object) -> float:
    check = number_where(lambda x: 0 <= x <= 5, "in [0, 5]", "0: all are equal")
    return check(value)


def _path(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("is no path; give the path of a file")
    return value


_TOKENS = integer_in(1, MOST_TOKENS, "give a number of tokens")
_TOKENS_OR_NONE = integer_in(0, MOST_TOKENS, "0: none")

_CHECKS: Mapping[str, Check] = {
    "num_requests": optional(integer_in(1, 2**40, "a workload has requests")),
    "seed": integer_in(0, 2**63 - 1, "give a number that numpy's generators take"),
    "arrival": one_of(ARRIVALS),
    "rate_per_s": _positive("use a rate > 0; to send all at once, arrival='at_once'"),
    "burstiness_cv": _positive("1 is as bursty as 'poisson'", 100.0),
    "concurrency": integer_in(1, None, "a closed loop has users"),
    "rate_scale": _positive("1 keeps the trace's times"),
    "structure": one_of(STRUCTURE_NAMES),
    "lengths": one_of(LENGTHS),
    "input_tokens": _TOKENS,
    "output_tokens": _TOKENS,
    "input_sigma": _sigma,
    "output_sigma": _sigma,
    "min_turns": integer_in(1, MOST_TURNS, "a session has a turn"),
    "max_turns": integer_in(1, MOST_TURNS, "a session has a turn"),
    "think_s": number_where(lambda x: 0 <= x <= 1e9, "in [0, 1e9]", "0: at once"),
    "new_conversations": number_where(
        lambda x: 1e-3 <= x <= 1, "in [0.001, 1]", "1: no request has a history"
    ),
    "max_prompt_tokens": optional(_TOKENS),
    "shared_tokens": _TOKENS_OR_NONE,
    "num_prefixes": integer_in(1, 2**24, "give a number of prefixes"),
    "popularity_exponent": number_where(
        lambda x: 0 <= x <= 20, "in [0, 20]", "0: all are equally popular"
    ),
    "tool_tokens": _TOKENS,
    "tool_sigma": _sigma,
    "num_documents": integer_in(1, 2**24, "give a number of documents"),
    "documents_per_request": integer_in(1, 1_000, "structure='single' has none"),
    "document_tokens": _TOKENS,
    "num_samples": integer_in(1, None, "a request has an output"),
    "use_beam_search": flag,
    "too_long": one_of(TOO_LONG),
    "scale_from_tokens": optional(_TOKENS),
    "trace_path": optional(_path),
    "trace_format": one_of((AUTO, *FORMATS)),
    "sort_trace": flag,
    "max_malformed": optional(integer_in(0, None, "None: any number")),
}
