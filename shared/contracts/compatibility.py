"""Whether a schema may follow another one within a version: consumers ignore what they do not know, and need what they
know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]


def breaks(old: Schema, new: Schema) -> list[str]:
    """Sentences that name what a reader or writer of `old` would trip over in `new`. Empty: compatible."""
    name = str(old.get("title", "message"))
    old_parts, new_parts = {name: old, **old.get("$defs", {})}, {name: new, **new.get("$defs", {})}
    problems: list[str] = []
    for part, before in old_parts.items():
        after = new_parts.get(part)
        if after is None:
            problems.append(f"{name}: type {part} is gone")
            continue
        problems += [f"{name}: {problem}" for problem in _compare(part, before, after)]
    return problems


def _compare(where: str, before: Schema, after: Schema) -> Iterator[str]:
    have, keep = after.get("properties", {}), before.get("properties", {})
    for field, was in keep.items():
        if field not in have:
            yield f"{where}.{field} was taken away"
        elif not _fits(_form(was), _form(have[field])):
            yield f"{where}.{field} was {_form(was)} and is {_form(have[field])}"
    for field in after.get("required", ()):
        if field not in before.get("required", ()):
            yield f"{where}.{field} is newly required"
    if "enum" in before and not set(before["enum"]) <= set(after.get("enum", ())):
        yield f"{where} has lost values: {sorted(set(map(str, before['enum'])) - set(map(str, after.get('enum', ()))))}"


def _fits(was: Any, now: Any) -> bool:
    """Equal but for unions, which may grow: a reader meets new members as it meets new fields, and old ones still
    come."""
    if isinstance(was, dict) and isinstance(now, dict):
        return was.keys() == now.keys() and all(
            all(any(_fits(a, b) for b in now[key]) for a in value) if key == "anyOf" else _fits(value, now[key])
            for key, value in was.items()
        )
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(_fits(a, b) for a, b in zip(was, now, strict=True))
    return bool(was == now)


def _form(schema: Any) -> Any:
    """What of a field's schema a reader relies on: all but prose, defaults and enumerations."""
    if isinstance(schema, list):
        return [_form(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _form(value)
        for key, value in sorted(schema.items())
        if key not in ("description", "default", "title", "enum", "discriminator")
    }
