"""The pool over a run as one web page without network: zoom, hover, ask for a request.

The page's data are the histories of all blocks, run-length encoded; its program is in
`paxkv/assets/pool_page.html`.
"""

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from paxkv.analysis.event_replay import GroupHistory, PoolHistory
from paxkv.analysis.pool_picture import (
    COLOURINGS,
    OWNER_COLOURS,
    SHARED_COLOUR,
    STATE_COLOURS,
    STATE_LABELS,
)
from paxkv.analysis.request_lives import request_lives
from paxkv.block_pool import NULL_BLOCK
from paxkv.events import Event
from paxkv.results import explained

TEMPLATE = "assets/pool_page.html"
PLACE_OF_DATA = "__DATA__"


def write_page(
    path: Path,
    events: Iterable[Event],
    history: PoolHistory,
    *,
    title: str,
    colour: str = "state",
) -> None:
    """Writes the page of a run.

    Args:
      history: what `replay` made of the same events.
      colour: what it tells at first, one of `COLOURINGS`.

    Raises:
      ResultsNotWritten: the file could not be written.
      ValueError: an unknown `colour`.
    """
    if colour not in COLOURINGS:
        raise ValueError(f"{colour=} is unknown; use one of {COLOURINGS}.")
    data = {"title": title, "colour": colour, **page_data(events, history)}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # no text of the log can end the script element
    template = resources.files("paxkv").joinpath(TEMPLATE).read_text(encoding="utf-8")
    before, after = template.split(PLACE_OF_DATA)
    with explained(path):
        path.write_text(before + text + after, encoding="utf-8")


def page_data(events: Iterable[Event], history: PoolHistory) -> dict[str, Any]:
    """What the page shows, as JSON will have it.

    `kinds` lists each [state, [[request id, sample index], ...]] that occurs. The runs of
    a block are [step, kind, step, kind, ...]: from the end of a step on it is of a kind.
    """
    kinds: dict[tuple, int] = {}
    groups = [
        {"numBlocks": group.num_blocks, "runs": _runs(group, kinds)}
        for group in history.groups
    ]
    lives = request_lives(events)
    return {
        "firstStep": history.first_step,
        "lastStep": history.last_step,
        "stateNames": [*STATE_LABELS.values()],
        "stateColours": [*STATE_COLOURS.values()],
        "sharedColour": SHARED_COLOUR,
        "ownerColours": [*OWNER_COLOURS],
        "kinds": [*kinds],
        "groups": groups,
        "lives": [[request_id, life.moments] for request_id, life in lives.items()],
    }


def _runs(group: GroupHistory, kinds: dict[tuple, int]) -> list[list[int]]:
    """Of blocks 1, 2, ...; adds to `kinds` what it lacks."""
    runs = []
    for spans in group.spans[NULL_BLOCK + 1 :]:
        run = []
        for span in spans:
            kind = (int(span.state), span.owners)
            run += [span.step, kinds.setdefault(kind, len(kinds))]
        runs.append(run)
    return runs
