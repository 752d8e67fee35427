"""Files of what the agent has measured or proven on this host: what cannot be read is measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shared.formats import UNREADABLE

T = TypeVar("T")


def load(path: Path, kind: type[T]) -> T | None:
    """Returns the stored value, or None if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, *UNREADABLE):
        return None


def load_each(folder: Path, name: str, kind: type[T]) -> list[tuple[Path, T]]:
    """The folders below `folder` that have such a file, by name, with its value; others are being made or removed."""
    try:
        inside = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    return [(one, value) for one in inside if (value := load(one / name, kind)) is not None]


def store(path: Path, value: Any) -> None:
    """Replaces the file as a whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2))
    beside.replace(path)
