"""This project's format of workloads: one session a line, all of it exact.

    {"arrival_s": 0.25, "turns": [{"prompt_ids": [5, 8], "max_tokens": 3, "think_s": 0.0}]}

`turns` has at least one turn; `think_s` may be absent. A session may also have
`max_prompt_tokens`, `num_samples`, `use_beam_search` and `options`, an object with
`priority`, `tenant`, `salt` (a text) and `reads_cache`. Unknown names are errors.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from io import TextIOBase
from typing import Any

from paxkv.checks import flag, integer_in, named, optional
from paxkv.request_options import RequestOptions
from paxkv.workloads.sessions import Session, Turn
from paxkv.workloads.traces.lines import (
    has_keys,
    json_object,
    numbered_lines,
    require_keys,
    time,
    token_ids,
)
from paxkv.workloads.traces.rows import CountTokens, Malformed

OPTIONS = ("priority", "tenant", "salt", "reads_cache")
_POSITIVE = integer_in(1, 2**31 - 1, "give a number > 0")
_SESSION_KEYS = {field.name for field in fields(Session)}
_TURN_KEYS = {field.name for field in fields(Turn)}


def matches(first_line: str) -> bool:
    return has_keys(first_line, "arrival_s", "turns")


def rows(
    file: TextIOBase, malformed: Malformed, count_tokens: CountTokens
) -> Iterator[tuple[int, Session]]:
    """Whole sessions, lazily."""
    for number, line in numbered_lines(file, malformed):
        try:
            session = _session(json_object(line))
        except (TypeError, ValueError) as error:
            malformed(number, str(error))
        else:
            yield number, session


def write_sessions(path: str | os.PathLike[str], sessions: Iterable[Session]) -> int:
    """Writes sessions, one a line, and returns how many. They are read back the same.

    Raises:
      ValueError: a session has options that the format has no names for.
      OSError: the file cannot be written.
    """
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for session in sessions:
            file.write(json.dumps(_to_json(session)) + "\n")
            count += 1
    return count


def _to_json(session: Session) -> dict[str, Any]:
    defaults = RequestOptions()
    options = {
        field.name: getattr(session.options, field.name)
        for field in fields(RequestOptions)
        if getattr(session.options, field.name) != getattr(defaults, field.name)
    }
    unknown = [
        name
        for name, value in options.items()
        if name not in OPTIONS or isinstance(value, bytes)
    ]
    if unknown:
        raise ValueError(
            f"a session has options {', '.join(unknown)}, which the format cannot hold; "
            f"it has {', '.join(OPTIONS)} (texts, no bytes). Leave them out."
        )
    row: dict[str, Any] = {
        "arrival_s": session.arrival_s,
        "turns": [asdict(turn) for turn in session.turns],
    }
    if session.max_prompt_tokens is not None:
        row["max_prompt_tokens"] = session.max_prompt_tokens
    if session.num_samples != 1 or session.use_beam_search:
        row["num_samples"] = session.num_samples
        row["use_beam_search"] = session.use_beam_search
    if options:
        row["options"] = options
    return row


def _session(row: dict[str, Any]) -> Session:
    """Raises ValueError or TypeError: the line is no session."""
    require_keys(row, "arrival_s", "turns")
    _refuse_unknown(row, _SESSION_KEYS)
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise ValueError("turns is no list of at least one turn")
    options = row.get("options", {})
    if not isinstance(options, dict):
        raise ValueError(f"options is a {type(options).__name__}, not an object")
    _refuse_unknown(options, set(OPTIONS))
    cap = row.get("max_prompt_tokens")
    return Session(
        arrival_s=time("arrival_s", row["arrival_s"], "seconds"),
        turns=tuple(_turn(turn) for turn in turns),
        options=RequestOptions(**options),
        num_samples=named("num_samples", row.get("num_samples", 1), _POSITIVE),
        use_beam_search=named("use_beam_search", row.get("use_beam_search", False), flag),
        max_prompt_tokens=named("max_prompt_tokens", cap, optional(_POSITIVE)),
    )


def _turn(turn: object) -> Turn:
    if not isinstance(turn, dict):
        raise ValueError(f"has a turn that is a {type(turn).__name__}, not an object")
    require_keys(turn, "prompt_ids", "max_tokens")
    _refuse_unknown(turn, _TURN_KEYS)
    prompt_ids = token_ids("prompt_ids", turn["prompt_ids"])
    if not prompt_ids:
        raise ValueError("has a turn with no prompt_ids")
    return Turn(
        prompt_ids=prompt_ids,
        max_tokens=named("max_tokens", turn["max_tokens"], _POSITIVE),
        think_s=time("think_s", turn.get("think_s", 0.0), "seconds"),
    )


def _refuse_unknown(row: dict[str, Any], names: set[str]) -> None:
    unknown = row.keys() - names
    if unknown:
        raise ValueError(
            f"has {', '.join(sorted(unknown))}, which is none of {', '.join(sorted(names))}"
        )
