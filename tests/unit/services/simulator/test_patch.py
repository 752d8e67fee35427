"""Merge patches, strategic merge patches and JSON patches on plain JSON."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from services.simulator.patch import PatchError, json_patch, merge


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a"], ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7396(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merge(target, patch) == result
    assert target == before, "nothing is changed in place"


def test_conditions_are_merged_by_type() -> None:
    target = {"conditions": [{"type": "A", "status": "True", "x": 1}, {"type": "B", "status": "True"}]}
    patch = {"conditions": [{"type": "B", "status": "False"}, {"type": "C", "status": "True"}]}
    assert merge(target, patch, strategic=True)["conditions"] == [
        {"type": "A", "status": "True", "x": 1}, {"type": "B", "status": "False"}, {"type": "C", "status": "True"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        ({"op": "add", "path": "/a/c~1d", "value": 1}, {"a": {"b": [1, 2], "c/d": 1}}),
        ({"op": "add", "path": "/a/b/-", "value": 3}, {"a": {"b": [1, 2, 3]}}),
        ({"op": "add", "path": "/a/b/0", "value": 0}, {"a": {"b": [0, 1, 2]}}),
        ({"op": "add", "path": "/a/b/2", "value": 3}, {"a": {"b": [1, 2, 3]}}),
        ({"op": "remove", "path": "/a/b/1"}, {"a": {"b": [1]}}),
        ({"op": "replace", "path": "/a/b", "value": "x"}, {"a": {"b": "x"}}),
        ({"op": "test", "path": "/a/b/1", "value": 2}, {"a": {"b": [1, 2]}}),
        ({"op": "replace", "path": "", "value": {}}, {}),
    ],
)
def test_operations_of_rfc_6902(operation: Any, result: Any) -> None:
    document = {"a": {"b": [1, 2]}}
    assert json_patch(document, [operation]) == result
    assert document == {"a": {"b": [1, 2]}}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/x"},
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "add", "path": "/a/b/4", "value": 1},
        {"op": "replace", "path": "/a/b/2"},
        {"op": "test", "path": "/a/b/0", "value": 9},
        {"op": "move", "path": "/a", "from": "/b"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/a/b/0/c", "value": 1},
    ],
)
def test_what_cannot_be_applied_is_refused(operation: Any) -> None:
    with pytest.raises(PatchError):
        json_patch({"a": {"b": [1, 2]}}, [operation])
