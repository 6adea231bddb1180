"""Makes tests/fixtures/beam/expected.json: what transformers' beam search finds.

    python -m venv hf-venv
    hf-venv/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors
    hf-venv/bin/python scripts/make_beam_fixture.py

Needs torch and transformers; the tests that read the fixture need neither. The model is
one of tests/fixtures/hf. Each case of a grid of widths, length penalties, early stopping
and stop tokens has the best sequences (without prompt and padding) and their scores. The
stop tokens are the ones that the search without any likes to choose, so that hypotheses
do end early. `generate(num_beams=1)` would be greedy search; width 1 calls the beam
search itself.

A prompt is taken only if no decision about it was close: `min_gap` is the smallest
difference between two cumulative log-probabilities of which one ranked lower, two scores
of hypotheses kept, or the two sides of the rule that ends the search.
"""

import argparse
import itertools
import json
from collections import Counter
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin

FIXTURES = Path(__file__).resolve().parent.parent / "tests/fixtures"
MODEL = "llama3"
PROMPT_LENGTHS = (5, 11, 23)  # tokens
MAX_TOKENS = 10
WIDTHS = (1, 2, 3, 4, 8)
LENGTH_PENALTIES = (0.0, 1.0, 2.0, -1.0)
EARLY_STOPPING = (True, False, "never")
NUM_STOP_TOKENS = (0, 1, 2)
MIN_GAP = 5e-5  # float32 rounding of a sum of ten log-probabilities is near 5e-6
NEVER_CHOSEN = -1e8  # transformers adds -1e9 to the score of what must not be chosen
MAX_BYTES = 60_000


class CloseCall(Exception):
    """A decision that rounding could turn."""


def watch_gaps(model: torch.nn.Module) -> list[float]:
    """The gaps of every decision of later searches, appended as they are made."""
    gaps: list[float] = []

    def note(found: torch.Tensor) -> None:
        smallest = float(found.min()) if found.numel() else float("inf")
        if smallest < MIN_GAP:
            raise CloseCall
        gaps.append(smallest)

    def watch(name: str, scores_of) -> None:
        original = getattr(model, name)

        def watched(*args, **kwargs):
            result = original(*args, **kwargs)
            note(scores_of(result, kwargs))
            return result

        setattr(model, name, watched)

    def neighbours(scores: torch.Tensor) -> torch.Tensor:
        return -scores[scores > NEVER_CHOSEN].diff()

    def sides(_, known: dict) -> torch.Tensor:
        if not known["is_sent_finished"].all() or known["early_stopping"] is True:
            return torch.empty(0)
        never = known["early_stopping"] == "never" and known["length_penalty"] > 0
        end = known["max_length"] if never else known["cur_len"]
        length = end - known["decoder_prompt_len"]
        best = known["running_beam_scores"][0, 0] / length ** known["length_penalty"]
        return (best - known["beam_scores"].min()).abs()

    watch("_get_top_k_continuations", lambda result, _: neighbours(result[0][0]))
    watch("_update_finished_beams", lambda result, _: neighbours(result[1][0]))
    watch("_check_early_stop_heuristic", sides)
    return gaps


def search(
    model: torch.nn.Module,
    prompt: list[int],
    stop_token_ids: list[int],
    width: int,
    num_return: int,
    length_penalty: float,
    early_stopping: bool | str,
) -> tuple[list[list[int]], list[float]]:
    """Sequences and scores, best first."""
    model.generation_config = GenerationConfig()
    config = GenerationConfig(
        num_beams=width,
        num_return_sequences=num_return,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        eos_token_id=stop_token_ids or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        custom_generate=GenerationMixin._beam_search if width == 1 else None,
    )
    sequences = []
    for row in found.sequences[:, len(prompt) :].tolist():
        stops = [i for i, token_id in enumerate(row) if token_id in stop_token_ids]
        sequences.append(row[: stops[0] + 1] if stops else row)
    return sequences, [round(float(score), 5) for score in found.sequences_scores]


def liked_tokens(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    """The tokens most frequent in what the widest search without stop tokens finds."""
    width = max(WIDTHS)
    sequences, _ = search(model, prompt, [], width, width, 1.0, False)
    counts = Counter(token_id for sequence in sequences for token_id in sequence)
    return [token_id for token_id, _ in counts.most_common(max(NUM_STOP_TOKENS))]


def cases_of(model: torch.nn.Module, prompt: list[int]) -> list[dict]:
    liked = liked_tokens(model, prompt)
    cases = []
    grid = itertools.product(NUM_STOP_TOKENS, WIDTHS, LENGTH_PENALTIES, EARLY_STOPPING)
    for num_stop_tokens, width, length_penalty, early_stopping in grid:
        if num_stop_tokens == 0 and early_stopping is not False:
            continue  # nothing ends before the last step
        asked = dict(
            stop_token_ids=liked[:num_stop_tokens],
            width=width,
            num_return=1 + len(cases) % width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        sequences, scores = search(model, prompt, **asked)
        cases.append(asked | dict(sequences=sequences, scores=scores))
    return cases


def written(header: dict, prompts: list[dict]) -> str:
    """JSON with a line for each case, whose values stand in the order of `fields`."""
    lines = []
    for prompt in prompts:
        cases = prompt.pop("cases")
        rows = [json.dumps(list(case.values()), separators=(",", ":")) for case in cases]
        head = json.dumps(prompt)[:-1]
        lines.append(head + ', "cases": [\n' + ",\n".join(rows) + "\n]}")
    fields = json.dumps(header | dict(fields=list(cases[0])))[:-1]
    return fields + ', "prompts": [\n' + ",\n".join(lines) + "\n]}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FIXTURES / "beam/expected.json")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()  # of options that one beam may not use
    model = AutoModelForCausalLM.from_pretrained(
        FIXTURES / "hf" / MODEL, attn_implementation="eager", dtype=torch.float32
    ).eval()
    gaps = watch_gaps(model)
    prompts, seeds = [], itertools.count()
    for length in PROMPT_LENGTHS:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            vocab_size = model.config.vocab_size
            prompt = torch.randint(3, vocab_size, (length,), generator=generator).tolist()
            gaps.clear()
            try:
                cases = cases_of(model, prompt)
            except CloseCall:
                continue
            ended = sum(len(s) < MAX_TOKENS for case in cases for s in case["sequences"])
            total = sum(len(case["sequences"]) for case in cases)
            print(f"seed {seed:3}  gap {min(gaps):.1e}  {ended} of {total} end early")
            prompts.append(
                dict(prompt_ids=prompt, seed=seed, min_gap=min(gaps), cases=cases)
            )
            break
    header = dict(
        torch=torch.__version__,
        transformers=transformers.__version__,
        model=MODEL,
        max_tokens=MAX_TOKENS,
    )
    text = written(header, prompts)
    if len(text) > MAX_BYTES:
        raise SystemExit(f"{len(text)=} exceeds {MAX_BYTES=}; search a smaller grid.")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print(f"{args.out}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
