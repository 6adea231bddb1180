"""What users ask, and when: sessions of one or several turns."""

from dataclasses import dataclass, field

from paxkv.request_options import RequestOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session."""

    prompt_ids: tuple[int, ...]  # later turns: follows all that was said before
    max_tokens: int  # outputs have exactly so many
    think_s: float = 0.0  # between the end of the turn before and this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns one after the other: the prompt of each is the prompt and the output of the
    one before, and what it adds."""

    arrival_s: float  # after the start of the run
    turns: tuple[Turn, ...]
    options: RequestOptions = field(default_factory=RequestOptions)
    num_samples: int = 1
    use_beam_search: bool = False  # of width num_samples
    # of the conversation, the prompt keeps only the newest tokens; None: all
    max_prompt_tokens: int | None = None
