"""Why is it slow: where the time of a run's requests went, and what to turn.

    python -m experiments.diagnose results/trial
    python -m experiments.diagnose results/trial --profile=calibrated --verify

Reads rows.jsonl and requests.jsonl of simulate_trace or serve_trace. Splits p50, p95 and
p99 of TTFT and TPOT by cause, names the dominating cause of each and the one knob that
addresses it, and says what the records cannot tell. `--verify` turns every knob by one step
in simulation, and exits with 1 if one that costs no more helps more. Loads no jax.
"""

from pathlib import Path

from absl import app, flags, logging
from tqdm import tqdm

from experiments import entry
from paxkv.analysis.diagnosis.advice import advise
from paxkv.analysis.diagnosis.causes import PERCENTILES, Finding, diagnose
from paxkv.analysis.diagnosis.floors import Floor
from paxkv.analysis.diagnosis.knobs import KNOBS
from paxkv.analysis.diagnosis.runs import Run, floor_of, read_runs, simulator
from paxkv.analysis.diagnosis.verify import turn_all, verify_table
from paxkv.analysis.diagnosis.words import split_table, unknowns, verdict

PROFILE = flags.DEFINE_string("profile", None, "Diagnoses this one only; default: all.")
VERIFY = flags.DEFINE_boolean("verify", False, "Turns every knob in simulation.")
PERCENT = flags.DEFINE_enum(
    "percent", "95", [str(p) for p in PERCENTILES], "The percentile to verify."
)


def tell(run: Run, floor: Floor, findings: list[Finding]) -> None:
    """Prints the diagnosis of one run."""
    row, served = run.row, max((f.num_requests for f in findings), default=0)
    print(f"{row['name']} ({row['kind']}, {row['profile']}): {served:,} requests served\n")
    print(split_table(findings), end="\n\n")
    for finding in findings:
        slo_s = run.slo_s(finding.metric, finding.percent)
        print(verdict(finding, run.evidence, slo_s))
    print("\nWhat this cannot know:")
    unserved = len(run.records) - served
    for said in unknowns(row["kind"], run.profile, floor, findings, unserved):
        print(f"- {said}")


def verify(run: Run, findings: list[Finding], percent: int) -> bool:
    """Prints what each knob does; whether the named ones help most."""
    accused = [f for f in findings if f.percent == percent and f.stands_out]
    if not accused:
        print(f"\nNothing stands out at p{percent}: there is no knob to verify.")
        return True
    with tqdm(total=len(KNOBS) + 1, desc="knobs", unit="run") as bar:
        verified = turn_all(
            run.config,
            simulator(run.profile),
            (percent,),
            on_turned=lambda name: bar.update(),
        )
    right = True
    for finding in accused:
        name, metric = advise(finding, run.evidence).name, finding.metric
        print(f"\n{verify_table(verified, metric, percent, name or '')}")
        if name is None:
            print("No knob was named.")
        elif verified.confirms(name, metric, percent):
            print(f"Confirmed: {KNOBS[name].key} helps most of those that cost no more.")
        else:
            best = verified.best(metric, percent, KNOBS[name].price)
            right = False
            print(
                f"FAILED: {KNOBS[name].key} was named; "
                f"{best.flags if best else 'nothing'} helps most."
            )
    return right


def main(paths: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)

    # --- read
    try:
        runs = [run for path in paths for run in read_runs(Path(path))]
        known = sorted({run.row["profile"] for run in runs})
        runs = [run for run in runs if PROFILE.value in (None, run.row["profile"])]
        if not runs:
            raise ValueError(f"--profile={PROFILE.value} is not there; use one of {known}.")
        floors = [floor_of(run) for run in runs]
        found = [
            diagnose(run.records, floor) for run, floor in zip(runs, floors, strict=True)
        ]
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise app.UsageError(str(error)) from error

    # --- tell
    right = True
    for index, (run, floor, findings) in enumerate(zip(runs, floors, found, strict=True)):
        print("\n" + "=" * 78 if index else "", end="\n" if index else "")
        if not findings:
            print(f"{run.row['name']}: no request was served, so there is no latency.")
            continue
        tell(run, floor, findings)
        if VERIFY.value:
            try:
                right &= verify(run, findings, int(PERCENT.value))
            except ValueError as error:
                right = False
                print(f"FAILED: the run cannot be simulated: {error}")
    return int(not right)


if __name__ == "__main__":
    entry.run(main, paths="RESULT")
