"""Rules that hold for the repository as a whole, each checked on its tracked files."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("paxkv", "pallas_kernels", "experiments")
CONFIG_FILES = ("paxkv/config.py", "paxkv/models/config.py")
# They build an engine or a model from both sides, so no import rule holds for them.
JOINING_MODULES = (
    "building",
    "llm",
    "platform",
    "relocation",
    "reproduction",
    "training",
    "trials",
)
MAX_LINES = 350
MAX_LINES_OF_KERNEL = 450


@cache
def tracked_files() -> tuple[Path, ...]:
    """What git tracks or would track; a copy without git has every file instead."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout, so which files are the repository's is unknown")
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def tracked_texts() -> list[tuple[str, str]]:
    """Path and text of every tracked file that is text."""
    texts = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" not in data:
            texts.append((str(path.relative_to(ROOT)), data.decode(errors="replace")))
    return texts


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def test_no_file_names_a_place_outside_the_repository() -> None:
    """A checkout's own path, a home folder or a package index means nothing elsewhere."""
    indexes = "|".join(("pythonhosted", r"pypi\.org", r"deb\.debian\.org"))
    homes = "/root/|/home/[a-z]|/Users/[a-z]"
    pattern = re.compile(f"{re.escape(str(ROOT))}/|{homes}|{indexes}")
    this_file = str(Path(__file__).relative_to(ROOT))
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_texts()
        if name != this_file and (match := pattern.search(text))
    ]
    assert not found, "write these without a path or host of one machine:\n" + "\n".join(
        found
    )


def test_python_files_stay_readable() -> None:
    """The longest file one still reads from top to bottom; a longer one has two parts."""
    too_long = []
    for path in python_files(*PACKAGES, "configs", "tests", "scripts"):
        limit = MAX_LINES_OF_KERNEL if "pallas_kernels" in path.parts else MAX_LINES
        lines = path.read_text().count("\n")
        if lines > limit:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {limit}")
    assert not too_long, "split these files:\n" + "\n".join(too_long)


def test_only_the_public_api_of_jax_is_imported() -> None:
    """But for what jax 0.10.2 has nowhere else, in the file of version differences."""
    private = []
    for path in python_files(*PACKAGES, "tests"):
        if path.name == "gpu_compat.py":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            private += [f"{place}: {name}" for name in names if name.startswith("jax._src")]
    assert not private, "these may vanish with the next jax:\n" + "\n".join(private)


def dataclass_fields(path: Path) -> list[tuple[str, str]]:
    """(class, field) of every annotated field of the file's classes."""
    return [
        (node.name, item.target.id)
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]


@pytest.mark.parametrize("config_file", CONFIG_FILES)
def test_every_config_field_is_read(config_file: str) -> None:
    """A field that nothing reads is a knob that does nothing."""
    defined_in = ROOT / config_file
    read = {
        node.attr
        for path in python_files("paxkv", "experiments")
        if path != defined_in
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    fields = dataclass_fields(defined_in)
    assert fields, f"{config_file} defines no config"
    unread = [f"{owner}.{name}" for owner, name in fields if name not in read]
    assert not unread, f"nothing reads these fields of {config_file}: {unread}"


def test_import_rules_cover_every_module() -> None:
    """A new module of paxkv is host core, device side or one of those that join the two."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    named = set(JOINING_MODULES)
    for contract in contracts["contracts"]:
        named |= {name.removeprefix("paxkv.") for name in contract["source_modules"]}
    modules = {
        path.stem
        for path in (ROOT / "paxkv").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    } - {"__init__"}
    uncovered = sorted(modules - named)
    assert not uncovered, f"name {uncovered} in a contract of tool.importlinter"


def readme_commands() -> list[str]:
    """Lines of the README's code blocks that start a command."""
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", readme(), flags=re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def readme() -> str:
    return (ROOT / "README.md").read_text()


def test_commands_of_the_readme_exist() -> None:
    commands = readme_commands()
    modules = [m for line in commands for m in re.findall(r"-m (experiments\.\w+)", line)]
    scripts = [s for line in commands for s in re.findall(r"\b(scripts/\w+\.\w+)", line)]
    assert scripts, "the README shows no script to start with"
    for module in modules:
        assert importlib.util.find_spec(module), (
            f"the README runs {module}, which is missing"
        )
    for script in scripts:
        assert (ROOT / script).is_file(), f"the README runs {script}, which is missing"


def test_python_of_the_readme_compiles() -> None:
    programs = re.findall(r"```python\n(.*?)```", readme(), flags=re.DOTALL)
    assert programs, "the README shows no program"
    for program in programs:
        compile(program, "README.md", "exec")


def test_ci_runs_what_a_developer_runs() -> None:
    assert "scripts/test.sh" in (ROOT / ".ci/run").read_text()


def project_table() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_locks_pin_versions_and_nothing_else() -> None:
    locks = sorted((ROOT / "requirements").glob("lock*.txt"))
    assert locks, "scripts/lock.sh writes them"
    for lock in locks:
        for line in lock.read_text().splitlines():
            assert re.fullmatch(r"#.*|[a-z0-9-]+==[0-9][\w.]*", line), (
                f"{lock.name}: {line}"
            )


def test_locks_cover_every_dependency() -> None:
    project = project_table()
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *extras["test"],
        *extras["plots"],
        *extras["gguf"],
        *extras["cpu"],
    ]
    for lock in (ROOT / "requirements").glob("lock*.txt"):
        pinned = {line.split("==")[0] for line in lock.read_text().splitlines()}
        for requirement in wanted:
            name = re.split(r"[^\w-]", requirement)[0].replace("_", "-").lower()
            assert name in pinned, f"{lock.name} lacks {name}; run scripts/lock.sh"


def test_every_dependency_is_imported() -> None:
    """What nothing imports is not installed for it. jaxlib comes with jax."""
    module_of = {"absl-py": "absl", "orbax-checkpoint": "orbax"}
    imported = set()
    for path in python_files(*PACKAGES, "configs"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Import):
                imported.update(alias.name.split(".")[0] for alias in node.names)
    names = [re.split(r"[^\w-]", text)[0] for text in project_table()["dependencies"]]
    unused = {module_of.get(name, name) for name in names} - imported - {"jaxlib"}
    assert not unused, f"nothing imports {sorted(unused)}; drop them from pyproject.toml"


def test_importing_the_package_offers_its_names_without_loading_jax() -> None:
    code = "import sys, paxkv; dir(paxkv); print('jax' in sys.modules, 'LLM' in dir(paxkv))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "True"]
