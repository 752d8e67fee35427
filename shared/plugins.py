"""What other installed packages add to Kerf, by entry point: filters, scores, policies, dialects, strategies.

The name of an entry point is the name of what it adds, so Kerf knows all names without importing a plug-in. Its code is
imported when a service makes its own list of built-in parts and plug-ins. Built-in parts come first, then plug-ins in
the order of their names. docs/examples/plugin is a package with one of each kind; `python -m shared.plugins` lists what
is installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, get_args

import msgspec

Group = Literal["kerf.filters", "kerf.scores", "kerf.policies", "kerf.dialects", "kerf.strategies"]

T = TypeVar("T")


class PluginError(Exception):
    """A plug-in cannot be used. The text names its package and its entry point, and says what to change."""


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plug-in that is in use."""

    group: str
    name: str
    package: str
    """The distribution that provides it, with its version."""


_loaded: dict[tuple[str, str], Plugin] = {}


def loaded() -> tuple[Plugin, ...]:
    """The plug-ins that this process has loaded, for its log."""
    return tuple(_loaded[key] for key in sorted(_loaded))


@cache
def _points(group: Group) -> tuple[EntryPoint, ...]:
    """The entry points of a group by name. Raises PluginError if two packages use one name."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, _package(point))):
        first = found.setdefault(point.name, point)
        if (first.value, _package(first)) != (point.value, _package(point)):
            raise PluginError(
                f"{_said(point)}: {_package(first)} has an entry point of that name too; rename or uninstall one of "
                "the two"
            )
    return tuple(found.values())


def names(group: Group, taken: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of a group's plug-ins, without importing them. Raises PluginError if a built-in part has the name."""
    built_in = frozenset(taken)
    for point in _points(group):
        if point.name in built_in:
            raise PluginError(f"{_said(point)}: Kerf itself has one of that name; rename the entry point")
    return tuple(point.name for point in _points(group))


def load(group: Group, kind: type[T], taken: Iterable[str] = ()) -> tuple[T, ...]:
    """The group's plug-ins as instances of `kind`; an entry point may be an instance, or a class to make one of.

    `taken`: the names of the built-in parts. Raises PluginError.
    """
    return tuple(_checked(point, _instance(point, _imported(point)), kind) for point in _named(group, taken))


def load_classes(group: Group, kind: type[T], taken: Iterable[str] = ()) -> tuple[type[T], ...]:
    """The group's plug-ins as subclasses of `kind`, of which the caller makes instances. Raises PluginError."""
    found = []
    for point in _named(group, taken):
        made = _imported(point)
        if not (isinstance(made, type) and issubclass(made, kind)):
            raise PluginError(
                f"{_said(point)}: {point.value} is no subclass of {_path(kind)}; derive it from that class"
            )
        _check_name(point, made)
        found.append(made)
    return tuple(found)


def resolve(path: str) -> Any:
    """What `module:name` refers to. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def refuse(group: Group, name: str, problem: str) -> PluginError:
    """The error for a plug-in whose content is wrong; `problem` says what is wrong, and what to change."""
    point = next((point for point in _points(group) if point.name == name), None)
    return PluginError(f"{name}: {problem}" if point is None else f"{_said(point)}: {problem}")


def _named(group: Group, taken: Iterable[str]) -> tuple[EntryPoint, ...]:
    names(group, taken)
    return _points(group)


def _imported(point: EntryPoint) -> Any:
    try:
        made = point.load()
    except Exception as error:
        raise PluginError(
            f"{_said(point)}: {point.value} cannot be imported: {type(error).__name__}: {error}; repair or uninstall "
            "the package"
        ) from error
    _loaded[point.group, point.name] = Plugin(group=point.group, name=point.name, package=_package(point))
    return made


def _instance(point: EntryPoint, made: Any) -> Any:
    if not isinstance(made, type):
        return made
    try:
        return made()
    except Exception as error:
        raise PluginError(
            f"{_said(point)}: {point.value}() fails: {type(error).__name__}: {error}; a class must need no arguments"
        ) from error


def _checked(point: EntryPoint, made: Any, kind: type[T]) -> T:
    if not isinstance(made, kind):
        raise PluginError(
            f"{_said(point)}: {point.value} is no {_path(kind)}, but a {type(made).__name__}; derive it from that class"
        )
    _check_name(point, made)
    return made


def _check_name(point: EntryPoint, made: Any) -> None:
    name = getattr(made, "name", None)
    if name != point.name:
        raise PluginError(
            f"{_said(point)}: {point.value} has {'no name' if name is None else f'the name {name!r}'}; its `name` must "
            f"be that of the entry point, {point.name!r}"
        )


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _said(point: EntryPoint) -> str:
    return f"plug-in {point.name!r} of {_package(point)} (entry point {point.group})"


def main() -> None:
    """Prints the plug-ins that are installed, a line each."""
    for group in get_args(Group):
        for point in _points(group):
            sys.stdout.write(f"{point.group} {point.name} = {point.value} ({_package(point)})\n")


if __name__ == "__main__":
    main()
