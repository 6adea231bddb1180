"""A step's seconds as they were measured: sums of features with fitted coefficients."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from operator import mul
from pathlib import Path
from typing import Any

from paxkv.checks import integer_in, named, number_where
from paxkv.results import explained
from paxkv.simulation.step_features import (
    MOVES,
    NUM_SWAPS,
    all_context,
    decode_features,
    feature_names,
    host_feature_names,
    host_features,
    is_decode_shape,
    mixed_features,
    move_features,
    padded_sizes,
)
from paxkv.simulation.work import StepSeconds, StepWork

SCHEMA = 1  # of the file; raise it when features change their meaning
_HOW = "python -m experiments.calibrate writes one"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Distances of predicted from measured step times, host included, as shares."""

    num_steps: int
    mape: float  # mean absolute percentage error
    p95: float
    bias: float  # mean of predicted / measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted, to what, and how well it does on steps outside the fit."""

    device_s: Mapping[str, float]  # by name of the feature
    host_s: Mapping[str, float]
    unseen: tuple[str, ...]  # features that no fitted step had: their cost is unknown
    num_groups: int  # of the cache
    device: str
    model: str
    max_num_seqs: int
    max_num_batched_tokens: int
    errors: Mapping[str, FitError]  # by set of steps; "fit" is that of the fit itself
    facts: Mapping[str, Any]  # versions, time, command


class MeasuredModel:
    """Seconds of steps of the model and the device that were measured.

    What decodes would have taken without the prefill of their step is theirs.
    """

    def __init__(
        self, calibration: Calibration, *, max_num_seqs: int, max_num_batched_tokens: int
    ):
        """The limits are those of the engine that is simulated: they decide how its steps
        are padded."""
        names = feature_names(calibration.num_groups)
        first_mixed = names.index("mixed_program")
        first_move = len(names) - len(MOVES)
        device = [calibration.device_s[name] for name in names]
        self._decode = device[:first_mixed]
        self._mixed = device[first_mixed:first_move]
        self._moves = device[first_move:]
        self._unseen_moves = tuple(int(name in calibration.unseen) for name in MOVES)
        self._host = [calibration.host_s[name] for name in host_feature_names()]
        self._sizes = padded_sizes(max_num_seqs, max_num_batched_tokens)
        self.source = f"measured on {calibration.device} with {calibration.model}"

    def seconds(self, work: StepWork) -> StepSeconds:
        """Where the time of a step goes.

        Raises:
          ValueError: it moves blocks in a way that no measured step did.
        """
        decode_s = prefill_s = swap_s = copy_s = 0.0
        if work.num_seqs and is_decode_shape(work):
            found = decode_features(self._sizes, work.num_seqs, all_context(work))
            total_s = sum(map(mul, self._decode, found))
            decode_s = total_s * work.num_decode_tokens / work.num_seqs
            prefill_s = total_s - decode_s
        elif work.num_seqs:
            total_s = sum(map(mul, self._mixed, mixed_features(self._sizes, work)))
            if work.num_decode_tokens:
                alone = decode_features(
                    self._sizes, work.num_decode_tokens, work.decode_context_tokens
                )
                decode_s = min(sum(map(mul, self._decode, alone)), total_s)
            prefill_s = total_s - decode_s
        moves = move_features(work)
        if any(moves):
            self._require_seen(moves)
            each = list(map(mul, self._moves, moves))
            swap_s, copy_s = sum(each[:NUM_SWAPS]), sum(each[NUM_SWAPS:])
        return StepSeconds(
            decode_s=decode_s,
            prefill_s=prefill_s,
            swap_s=swap_s,
            copy_s=copy_s,
            host_s=sum(map(mul, self._host, host_features(work))),
        )

    def _require_seen(self, moves: tuple[int, ...]) -> None:
        if any(map(mul, self._unseen_moves, moves)):
            unknown = [
                name
                for name, count, unseen in zip(
                    MOVES, moves, self._unseen_moves, strict=True
                )
                if count and unseen
            ]
            raise ValueError(
                f"a step has {unknown}, which no step of the calibration had: what they "
                "cost is unknown. Calibrate with steps of a run that has them (--steps)."
            )


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Writes one JSON object.

    Raises:
      ResultsNotWritten: with the path, the cause and the remedy.
    """
    text = json.dumps({"schema": SCHEMA} | asdict(calibration), indent=1) + "\n"
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def load_calibration(path: str | Path) -> Calibration:
    """Reads what `save_calibration` wrote.

    Raises:
      ValueError: the file is missing, is of another version, or is no calibration.
    """
    try:
        tree = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"calibration={str(path)!r} cannot be read ({error.strerror}); {_HOW}."
        ) from error
    except ValueError as error:
        raise ValueError(f"calibration={str(path)!r} is no JSON; {_HOW}.") from error
    version = tree.pop("schema", None) if isinstance(tree, dict) else None
    if version != SCHEMA:
        raise ValueError(
            f"calibration={str(path)!r} has schema {version}, this version reads {SCHEMA}; "
            "calibrate again (python -m experiments.calibrate)."
        )
    try:
        return _from_tree(tree)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(
            f"calibration={str(path)!r} is damaged: {error} {_HOW} anew."
        ) from error


_SECONDS = number_where(lambda x: x >= 0, "≥ 0", "it is a time in seconds")
_COUNT = integer_in(1, None, "it is a count")


def _from_tree(tree: dict[str, Any]) -> Calibration:
    expected = {field.name for field in fields(Calibration)}
    if tree.keys() != expected:
        raise ValueError(
            f"it lacks {sorted(expected - tree.keys())} and has unknown "
            f"{sorted(tree.keys() - expected)}."
        )
    num_groups = named("num_groups", tree["num_groups"], _COUNT)
    return Calibration(
        device_s=_coefficients(tree["device_s"], feature_names(num_groups)),
        host_s=_coefficients(tree["host_s"], host_feature_names()),
        unseen=tuple(str(name) for name in tree["unseen"]),
        num_groups=num_groups,
        device=str(tree["device"]),
        model=str(tree["model"]),
        max_num_seqs=named("max_num_seqs", tree["max_num_seqs"], _COUNT),
        max_num_batched_tokens=named(
            "max_num_batched_tokens", tree["max_num_batched_tokens"], _COUNT
        ),
        errors={name: FitError(**error) for name, error in tree["errors"].items()},
        facts=dict(tree["facts"]),
    )


def _coefficients(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"coefficients of {missing} are missing.")
    return {name: named(name, found[name], _SECONDS) for name in names}
