"""Figures 3 and 6 to 9: the paper's worked examples, on the real allocators and scheduler.

Paper: of regions of 2,048 and 512 tokens 2,038 and 507 are never used (figure 3); a prompt
of 7 tokens has blocks 7 and 1, its ninth token block 3 (figures 6 and 7); the first of two
samples to write copies block 1 to block 3 (figure 8); of four beams the search drops two,
which frees four blocks and shares the rest anew (figure 9).
Ours, computed: the same.
Hardware: none. Time: a second.

Run: python -m experiments.paper --figure=3-9
"""

from collections.abc import Callable
from typing import Any

from configs import trial
from paxkv.reproduction.figure import Check, Figure, Planted
from paxkv.reproduction.found import Found

FREE = (7, 1, 3)  # blocks that the paper's pool gives first
# Beams 1 to 3 go on from beam 0 where its second and third blocks begin, all but the last,
# which goes on from itself; then two beams have two children each.
BEAMS = 4
SPLIT, KEEP, DROP = (0, 0, 0, 3), (0, 1, 2, 3), (1, 1, 2, 2)
PARENTS = ((0,) * BEAMS, *(KEEP,) * 3, SPLIT, *(KEEP,) * 3, SPLIT, *(KEEP,) * 3, DROP)


def get_figure() -> Figure:
    checks = (
        _exact("figure 3, A: slots never used", 2038, _metric("3, A", "internal")),
        _exact("figure 3, B: slots never used", 507, _metric("3, B", "internal")),
        _exact("figure 6: table after the prompt", 71, _table("6", step=0)),
        _exact("figure 6: table after the ninth token", 713, _table("6", step=2)),
        _exact("figure 7: blocks that two requests share", 0, _num_shared),
        _exact("figure 8: owners of the prompt's blocks", 22, _owners("8", step=0)),
        _exact("figure 8: table of the first sample", 73, _table("8", step=1)),
        _exact("figure 8: table of the second sample", 71, _table("8", step=2, index=1)),
        _exact("figure 8: blocks copied", 1, _metric("8", "num_copied_blocks")),
        _exact("figure 9: owners, beam 0 before", 4331, _owners("9", step=11)),
        _exact("figure 9: owners, beam 3 before", 4111, _owners("9", step=11, index=3)),
        _exact("figure 9: owners, all beams after", 44421, _owners_of_all),
        _exact("figure 9: blocks held after", 9, _num_held),
    )
    return Figure(
        row="R3",
        figure="3-9",
        parts=("3", "6", "7", "8", "9"),
        title="The paper's worked examples",
        ran="its requests through the scheduler, step by step",
        runner="paper_examples",
        trial=_trial(),
        grid={"example": tuple(EXAMPLES)},
        choices={"example": EXAMPLES},
        seeds=(0,),
        checks=checks,
        planted=(
            Planted(
                name="regions of the true length",
                overrides={"cache.allocator": "contiguous_oracle"},
                where={"example": ("3, A", "3, B")},
                rejected_by=_names(checks, "figure 3"),
            ),
            Planted(
                name="a region of its own for each sequence",
                overrides={"cache.allocator": "contiguous_max"},
                where={"example": ("6", "8", "9")},
                rejected_by=_names(checks, "figure 6", "figure 8", "figure 9"),
            ),
            Planted(
                name="one request of two samples for two requests",
                overrides={
                    "example.prompt_tokens": (7,),
                    "example.output_tokens": (5,),
                    "example.num_samples": 2,
                },
                where={"example": ("7",)},
                rejected_by=_names(checks, "figure 7"),
            ),
        ),
        notes=(
            "Block tables and owners are shown as one number: 713 is blocks 7, 1 and 3.",
            "Block 0 is never handed out here, so blocks of figure 9 have other numbers "
            "than in the paper.",
        ),
    )


def _trial() -> dict[str, Any]:
    tree = trial.get_config("opt_13b,a100_40,contiguous_max").to_dict()
    return {**tree, "example": dict(EXAMPLES["6"]["example"])}


def _example(
    *, allocator: str = "paged", block_size: int = 4, max_context: int = 64, **example: Any
) -> dict[str, Any]:
    """What a cell sets; the pool holds eight of the longest sequences."""
    unset = {
        "num_samples": 1,
        "use_beam_search": False,
        "parents": (),
        "free_blocks": (),
    }
    return {
        "cache": {
            "allocator": allocator,
            "block_size": block_size,
            "num_blocks": 1 + 8 * max_context // block_size,
        },
        "engine": {"max_context": max_context},
        "example": {**unset, **example},
    }


_REGION = {"allocator": "contiguous_max", "block_size": 1, "num_steps": 2}
EXAMPLES = {
    "3, A": _example(max_context=2048, prompt_tokens=(7,), output_tokens=(3,), **_REGION),
    "3, B": _example(max_context=512, prompt_tokens=(3,), output_tokens=(2,), **_REGION),
    "6": _example(prompt_tokens=(7,), output_tokens=(4,), num_steps=3, free_blocks=FREE),
    "7": _example(
        prompt_tokens=(7, 5), output_tokens=(4, 4), num_steps=3, free_blocks=FREE
    ),
    "8": _example(
        prompt_tokens=(7,),
        output_tokens=(4,),
        num_samples=2,
        num_steps=3,
        free_blocks=FREE,
    ),
    "9": _example(
        prompt_tokens=(4,),
        output_tokens=(16,),
        num_samples=BEAMS,
        use_beam_search=True,
        parents=PARENTS,
        num_steps=len(PARENTS) + 1,
    ),
}


def _exact(name: str, number: int, ours: Callable[[Found], float]) -> Check:
    return Check(name=name, ours=ours, paper=number, band=(number, number))


def _names(checks: tuple[Check, ...], *starts: str) -> tuple[str, ...]:
    return tuple(check.name for check in checks if check.name.startswith(starts))


def _metric(example: str, path: str) -> Callable[[Found], float]:
    return lambda found: found(path, example=example)


def _table(example: str, *, step: int, index: int = 0) -> Callable[[Found], float]:
    return lambda found: _joined(found("tables", example=example)[step][index])


def _owners(example: str, *, step: int, index: int = 0) -> Callable[[Found], float]:
    return lambda found: _joined(found("refcounts", example=example)[step][index])


def _owners_of_all(found: Found) -> float:
    """Of each beam's blocks, or -1 where beams differ."""
    each = {_joined(owners) for owners in found("refcounts", example="9")[-1]}
    return each.pop() if len(each) == 1 else -1


def _num_held(found: Found) -> float:
    tables = found("tables", example="9")[-1]
    return len({block for table in tables for block in table})


def _num_shared(found: Found) -> float:
    first, second = found("tables", example="7")[-1]
    return len({*first} & {*second})


def _joined(numbers: list[int]) -> int:
    """Digits as one number; -1 where they are none, or no digits."""
    if not numbers or max(numbers) > 9:
        return -1
    return int("".join(map(str, numbers)))
