"""How an experiment starts. What is wrong with its flags ends it with one line."""

import re
import sys
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import NoReturn

from absl import app, flags
from ml_collections import config_dict, config_flags

from paxkv.sweeps.grid import flat


def run(
    main: Callable[..., int | None],
    *,
    config: str | None = None,
    paths: str | None = None,
) -> None:
    """Parses the flags, calls `main` and exits with its code, or 2 on an `app.UsageError`,
    1 without memory, 130 on ctrl-C.

    Args:
      config: the default of `--config`, whose definition must have none: absl reads that
        one at once, and a wrong key then raises. None: there is no such flag.
      paths: what the arguments without a flag are, of which `main` then gets the list; it
        must have at least one. None: there are none.
    """

    def parse(argv: list[str]) -> list[str]:
        try:
            return flags.FLAGS(argv if config is None else _with_config(argv, config))
        except flags.Error as error:
            _leave(f"FATAL Flags parsing error: {error}")

    def checked_main(argv: list[str]) -> int | None:
        try:
            if paths is None and argv[1:]:
                raise app.UsageError(f"unknown arguments {argv[1:]}; flags start with --.")
            if paths is not None and not argv[1:]:
                raise app.UsageError(f"{paths} is missing; name at least one.")
            return main() if paths is None else main(argv[1:])
        except app.UsageError as error:
            _leave(f"error: {error}")
        except MemoryError as error:
            print(f"FAILED: this machine has too little memory for it. {error}")
            return 1
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            return 130  # what a shell has for ctrl-C

    app.run(checked_main, flags_parser=parse)


def integers(flag: flags.FlagHolder) -> list[int]:
    """The numbers of a list flag; an `app.UsageError` names what is none."""
    try:
        values = [int(text) for text in flag.value]
    except ValueError as error:
        raise app.UsageError(f"--{flag.name}={flag.value} must be numbers.") from error
    if not values:
        raise app.UsageError(f"--{flag.name} is empty; name at least one number.")
    return values


def numbers(flag: flags.FlagHolder) -> list[int]:
    """The same, of at least one number ≥ 1."""
    values = integers(flag)
    if min(values) < 1:
        raise app.UsageError(f"--{flag.name}={values} must be at least 1.")
    return values


def _leave(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)  # 1 says that what was asked for ran and failed


def _with_config(argv: list[str], default: str) -> list[str]:
    """The arguments with `--config`, its file and the overridden keys checked."""
    alone = flags.FlagValues()  # finds the file before absl reads the overrides
    alone.set_gnu_getopt(True)
    path = flags.DEFINE_string("config", default, "", flag_values=alone)
    alone(argv, known_only=True)
    if not Path(path.value.partition(":")[0]).is_file():
        raise flags.Error(f"--config={path.value} is no file.")
    tree = _loaded(path.value, argv[0]).to_dict()
    keys = list(flat(tree))
    for argument in flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False):
        override = re.match(r"--?(?:no)?config\.([^=]*)", argument)
        if override and override[1] not in keys:
            nearest = _nearest(override[1], keys)
            above = nearest.rpartition(".")[0]
            beside = [k.split(".")[-1] for k in keys if k.rpartition(".")[0] == above]
            raise flags.Error(
                f"--config.{override[1]} is no key of {path.value}; nearest: {nearest}. "
                f"Keys of {above or 'config'}: {', '.join(beside)}."
            )
    if path.value != default:
        missing = [key for key in _loaded(default, argv[0]) if key not in tree]
        if missing:
            raise flags.Error(
                f"--config={path.value} has no {', '.join(missing)}; see {default}."
            )
    return argv if alone["config"].present else [argv[0], f"--config={default}", *argv[1:]]


def _loaded(path: str, program: str) -> config_dict.ConfigDict:
    """The config of a file, which may be any text."""
    plain = flags.FlagValues()
    try:
        config_flags.DEFINE_config_file("config", path, "", plain, sys_argv=[program])
        config = plain.flag_values_dict()["config"]
    except Exception as error:  # whatever the file raises
        *_, line = str(error).strip().splitlines() or [""]  # the others are where
        said = re.sub(r"^\w*Error: ", "", line) or type(error).__name__
        raise flags.Error(f"--config={path}: {said}") from error
    if not isinstance(config, config_dict.ConfigDict):
        raise flags.Error(f"--config={path}: get_config() must return a ConfigDict.")
    return config


def _nearest(key: str, keys: list[str]) -> str:
    """Of the same name elsewhere, else below or beside it in the config, else anywhere."""
    above, _, name = key.rpartition(".")
    same = [k for k in keys if k.endswith(f".{name}")]
    near = [k for k in keys if k.startswith((f"{key}.", f"{above}."))]
    among = same or near or keys
    return max(among, key=lambda k: SequenceMatcher(None, k.split(".")[-1], name).ratio())
