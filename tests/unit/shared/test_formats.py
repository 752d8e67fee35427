"""Whatever is wrong with a text, it raises one of the documented errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.formats import UNREADABLE, decode_manifests, decode_yaml


class Settings(msgspec.Struct):
    count: int = 0
    name: str = ""


@pytest.mark.parametrize(
    "data", [b'{"name":"\xff"}', b'{"x":' + b"[" * 100_000, b"{", b'{"count":' + b"9" * 5000 + b"}"]
)
def test_json_that_cannot_be_read_raises_one_of_three_errors(data: bytes) -> None:
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(data, type=Settings)


@pytest.mark.parametrize(
    "text",
    [
        "count: " + "9" * 5000,
        "count: !!int x",
        "count: !!float x",
        "count: !!bool x",
        "count: !!timestamp x",
        "when: 2026-13-45",
        'name: "\ud800"',
        "{{a: 1}: 2}",
        "count: [",
        "[" * 20_000,
    ],
    ids=lambda text: text[:20],
)
def test_yaml_that_cannot_be_read_raises_decode_error(text: str) -> None:
    """PyYAML's constructors raise ValueError, KeyError and AttributeError."""
    for kind in (Settings, Any):
        with pytest.raises(msgspec.DecodeError):
            decode_yaml(text, kind)
    with pytest.raises(msgspec.DecodeError):
        decode_manifests(text)


def test_yaml_is_read_as_its_kind() -> None:
    assert decode_yaml("{count: 3, name: a}", Settings) == Settings(3, "a")
    assert decode_yaml(b"[1, {a: b}]", Any) == [1, {"a": "b"}]
