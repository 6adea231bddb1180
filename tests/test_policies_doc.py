"""docs/policies.md and docs/sharing.md: their programs run, their commands do, and their
tables name every policy and setting."""

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from paxkv import config
from paxkv.allocators import ALLOCATORS
from paxkv.policies.admission import ADMISSION_POLICIES
from paxkv.policies.eviction import EVICTION_POLICIES
from paxkv.policies.pressure import PRESSURE_POLICIES, Relief
from paxkv.policies.scheduling import SCHEDULING_POLICIES
from paxkv.policies.victim import VICTIM_POLICIES
from paxkv.types import FinishReason

ROOT = Path(__file__).parents[1]
POLICIES = (ROOT / "docs" / "policies.md").read_text()
SHARING = (ROOT / "docs" / "sharing.md").read_text()
MODULE = "my_policies"
COMMAND = re.compile(r"python -m ([\w.]+)((?: --[^\s`]+)*)")

# What makes a command short; later flags win.
REDUCED = {
    "experiments.inspect_events": (),
    "experiments.bench_host": (
        "--running=3",
        "--serving=3",
        "--pools=300,600",
        "--pool_running=2",
        "--steps=4",
        "--batch=2",
        "--prompt=40",
        "--vllm=",
    ),
    "experiments.replay_prefixes": ("--capacities=2,inf",),
    "experiments.bench_layouts": (
        "--pools=3,4,2,8",
        "--num_blocks=16",
        "--rounds=1",
        "--moved=2",
    ),
    "experiments.train_adapter": (
        "--rank=2",
        "--steps=2",
        "--prompt_len=32",
        "--batch_tokens=80",
        "--num_eval=1",
    ),
    "experiments.measure_relocation": ("--blocks=1,128", "--tokens=16,512", "--rounds=3"),
    "experiments.count_sharing": ("--requests=3",),
    "tests.random_operations": ("--operations=300",),
}


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that looks like the checkout to a program, where it may leave files."""
    (tmp_path / "paxkv").symlink_to(ROOT / "paxkv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)


@pytest.fixture
def asked(place, monkeypatch):
    """How often each policy of the page's own module was asked, once it is in place."""
    own = [one for one in programs(POLICIES) if one.startswith(f"# {MODULE}.py")]
    assert len(own) == 3, "an eviction, a victim and a scheduling policy"
    (place / f"{MODULE}.py").write_text("\n\n".join(own))
    module = importlib.import_module(MODULE)
    counts = dict.fromkeys(("Sink.rank", "in_turns", "shortest_answer"), 0)

    def count(holder, name, key):
        policy = getattr(holder, name)

        def counted(*arguments):
            counts[key] += 1
            return policy(*arguments)

        monkeypatch.setattr(holder, name, counted)

    count(module.Sink, "rank", "Sink.rank")
    count(module, "in_turns", "in_turns")
    count(module, "shortest_answer", "shortest_answer")
    return counts


def test_each_policy_of_one_s_own_is_short():
    own = [one for one in programs(POLICIES) if one.startswith(f"# {MODULE}.py")]
    for program in own:
        assert sum(bool(line.strip()) for line in program.splitlines()) <= 20, program


def test_policies_programs_run(asked, place, capsys):
    """In order, as a reader would enter them; then the command that reads their events."""
    namespace: dict = {"__name__": "doc"}
    for program in programs(POLICIES):
        if not program.startswith(f"# {MODULE}.py"):
            exec(program, namespace)
    assert all(asked.values()), asked
    lines = capsys.readouterr().out.split()
    assert "with" in lines and lines[-2:] == ["AbQx", "bAxQ"]
    done = run(place, *COMMANDS["experiments.inspect_events"])
    assert "blocks evicted" in done.stdout
    assert {path.name for path in (place / "results/events").iterdir()} == {
        "pool.html",
        "pool.png",
        "trace.json",
    }


def test_sharing_programs_run(place):
    namespace: dict = {"__name__": "doc"}
    for program in programs(SHARING):
        exec(program, namespace)


def commands() -> dict[str, tuple[str, ...]]:
    """Every `python -m` command of both pages, the last form of each, in reduced form."""
    found = {}
    for module, given in COMMAND.findall(POLICIES + SHARING):
        found[module] = (module, *given.split(), *REDUCED[module])
    return found


COMMANDS = commands()


def run(place: Path, module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", module, *flags],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("module", sorted(COMMANDS.keys() - {"experiments.inspect_events"}))
def test_commands_run(module, place):
    line = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0, 1]}
    (place / "conversation_trace.jsonl").write_text(2 * (json.dumps(line) + "\n"))
    assert run(place, *COMMANDS[module]).stdout


def section(title: str) -> str:
    """The text below a heading."""
    (text,) = re.findall(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", POLICIES, re.M | re.S)
    return text


@pytest.mark.parametrize(
    ("title", "offered", "setting"),
    [
        ("Eviction", EVICTION_POLICIES, "eviction"),
        ("Victim", VICTIM_POLICIES, "victim"),
        ("Pressure", PRESSURE_POLICIES, "pressure"),
        ("Admission", ADMISSION_POLICIES, "admission"),
        ("Scheduling", SCHEDULING_POLICIES, "scheduling"),
    ],
)
def test_tables_name_every_policy_and_the_default(title, offered, setting):
    rows = re.findall(r"^\| `(\w+)` \|", section(title), re.M)
    assert [name for name in rows if name != "Belady"] == list(offered)
    settings = {**defaults(config.CacheConfig), **defaults(config.SchedulerConfig)}
    assert re.search(rf"\.{setting}` \| `{settings[setting]}` \|", POLICIES)


def defaults(of: type) -> dict[str, object]:
    return {field.name: field.default for field in fields(of)}


def test_what_the_pages_name_exists():
    for reason in re.findall(r"`((?:REJECTED|DROPPED)_\w+)`", POLICIES + SHARING):
        assert reason in FinishReason.__members__
    for relief in re.findall(r"`(?:Relief\.)?([A-Z]{4,})`", section("Pressure")):
        assert relief in Relief.__members__, relief
    known = {*defaults(config.CacheConfig), *defaults(config.SchedulerConfig)}
    settings = section("Settings of the cache") + section("Settings of a step")
    for cell in re.findall(r"^\| (`[^|]*`) \|", settings, re.M):
        for name in re.findall(r"`(?:SchedulerConfig\.)?(\w+)`", cell):
            assert name in known, name
    for path in re.findall(r"`((?:paxkv|experiments)/[\w/]+\.py)`", POLICIES + SHARING):
        assert (ROOT / path).is_file(), path


def test_the_page_names_every_system_and_allocator():
    text = section("Systems")
    systems = {path.stem for path in (ROOT / "configs" / "systems").glob("*.py")}
    assert {name for name in systems if f"`{name}`" in text} == systems
    rows = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert ["paged", *rows] == list(ALLOCATORS)
