"""The fields that filters and scores declare: read from a pod, and the pod reduced to them.

A field is a path such as "pod.spec.tolerations" from `PodState`, or "pod.metadata.annotations[example.com/rack]" for
one entry of a mapping. On the way to a field that is missing, its value is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

Path = tuple[str, ...]
"""The steps of a path: names of attributes, and "[key]" for an entry of a mapping."""


@cache
def steps_of(field: str) -> Path:
    """The steps of a field. Raises ValueError if it is no path."""
    attributes, bracket, key = field.partition("[")
    steps = tuple(attributes.split("."))
    if not all(step.isidentifier() for step in steps) or (bracket and (not key.endswith("]") or key == "]")):
        raise ValueError(
            f"{field!r} is no field; write a path such as pod.spec.tolerations or pod.metadata.labels[app]"
        )
    return (*steps, f"[{key}") if bracket else steps


def union(*declared: Iterable[str]) -> tuple[str, ...]:
    """All fields, each once, in the order of their names."""
    return tuple(sorted({field for fields in declared for field in fields}))


class UndeclaredField(AttributeError):
    """A filter or score reads a field that it does not declare."""


class _View:
    """Some fields of an object. Reading another one raises UndeclaredField."""

    def __init__(self, path: str, reader: str, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields, _path=path, _reader=reader)

    def __getattr__(self, name: str) -> Any:
        raise _undeclared(self._reader, f"{self._path}.{name}".removeprefix("."))


class _Entries:
    """Some entries of a mapping. Asking for another one raises UndeclaredField, and so does all that lists them."""

    def __init__(self, path: str, reader: str, entries: dict[str, Any]) -> None:
        self._path, self._reader, self._entries = path, reader, entries

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self._entries:
            raise _undeclared(self._reader, f"{self._path}[{key}]")
        found = self._entries[key]
        return default if found is None else found

    def __getitem__(self, key: str) -> Any:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getattr__(self, name: str) -> Any:
        raise _undeclared(self._reader, self._path)

    def __iter__(self) -> Any:
        raise _undeclared(self._reader, self._path)

    def __len__(self) -> int:
        raise _undeclared(self._reader, self._path)


def _undeclared(reader: str, field: str) -> UndeclaredField:
    return UndeclaredField(
        f"{reader} reads {field}, which it does not declare. A pod's row is cached by the declared fields: add the "
        "field to its `reads` by its whole path, such as pod.spec.tolerations, or give it the scope `cluster`"
    )


_Tree = dict[str, Any]
"""By step; an empty tree is a field that is declared as a whole."""


@cache
def _tree(fields: tuple[str, ...]) -> _Tree:
    tree: _Tree = {}
    for field in sorted(fields, key=lambda field: len(steps_of(field))):
        branch = tree
        steps = steps_of(field)
        for place, step in enumerate(steps):
            if step in branch and not branch[step]:
                break  # a part of it is declared as a whole
            branch = branch.setdefault(step, {})
            if place == len(steps) - 1:
                branch.clear()
    return tree


_Compiled = tuple[tuple[str, "_Compiled | None"], ...]
"""A tree as the steps of its branches; None: a field."""


@cache
def _compiled(fields: tuple[str, ...]) -> _Compiled:
    def of(tree: _Tree) -> _Compiled:
        return tuple((step, of(tree[step]) if tree[step] else None) for step in sorted(tree))

    return of(_tree(fields))


def values_of(thing: Any, fields: tuple[str, ...]) -> list[Any]:
    """The values of these fields, nested as their paths are: equal for objects with equal fields, and for no others.

    A missing part of a path is as one without any of its fields.
    """
    return _values(thing, _compiled(fields))


def _values(thing: Any, compiled: _Compiled) -> list[Any]:
    found = []
    for step, below in compiled:
        value = thing.get(step[1:-1]) if step[0] == "[" else getattr(thing, step)
        if below is not None and value is not None:
            value = _values(value, below)
            value = None if value.count(None) == len(value) else value
        found.append(value)
    return found


def reduced(thing: Any, fields: tuple[str, ...], reader: str) -> Any:
    """The object with these fields alone. `reader` names what reads it, for the error."""
    return _reduced(thing, _tree(fields), reader, "")


def _reduced(thing: Any, tree: Mapping[str, Any], reader: str, path: str) -> Any:
    if thing is None or (path and not tree):
        return thing
    if any(step[0] == "[" for step in tree):
        return _Entries(path, reader, {step[1:-1]: thing.get(step[1:-1]) for step in tree})
    below = path and f"{path}."
    return _View(
        path, reader, {step: _reduced(getattr(thing, step), part, reader, below + step) for step, part in tree.items()}
    )
