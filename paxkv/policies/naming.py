"""A policy by its name, or by the import path of one that is not ours."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Policy = TypeVar("Policy", bound=Callable[..., Any])


def policy_named(name: str, offered: Mapping[str, Policy], kind: str) -> Policy:
    """The offered policy of that name, or what an import path leads to.

    Args:
      name: a key of `offered`, "package.module:attribute" or "folder/file.py:attribute".
        Importing runs the module, so a path is to be trusted as code is.
      kind: of the policies, for messages, such as "eviction policy".

    Raises:
      ValueError: no such name, or nothing callable at that path. The message names what
        is offered, and the cause.
    """
    if name in offered:
        return offered[name]
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise ValueError(
            f"{kind} {name!r} is unknown{_nearest(name, offered)}; use one of "
            f"{', '.join(offered)}, or a path such as 'package.module:attribute'."
        )
    return _callable_in(_import(place, f"{kind} {name!r}"), attribute, f"{kind} {name!r}")


def _callable_in(module: ModuleType, attribute: str, what: str) -> Any:
    """What the module has under that name, which may have dots."""
    found: Any = module
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        names = [other for other in vars(module) if not other.startswith("_")]
        raise ValueError(
            f"{what}: {module.__name__} has no {attribute!r}"
            f"{_nearest(attribute, names)}; name a function or a class that it has."
        ) from None
    if not callable(found):
        raise ValueError(
            f"{what} is a {type(found).__name__}, which cannot be called; name a function "
            "or a class."
        )
    return found


def _import(place: str, what: str) -> ModuleType:
    """The module of that name, or of that file if the name ends with .py."""
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        name = f"paxkv policies of {path}"  # no other module has this name
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "the suffix is that of Python"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where dataclasses look for the names of annotations
        spec.loader.exec_module(module)
        return module
    except Exception as error:  # whatever the module's own code raises
        raise ValueError(
            f"{what}: {place!r} cannot be imported, {type(error).__name__}: {error}. Give "
            "the path of a module that Python finds from here, or of a file."
        ) from error


def _nearest(name: str, names: Mapping[str, Any] | list[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
