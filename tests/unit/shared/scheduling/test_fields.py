"""Declared fields: their values, and a pod reduced to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.scheduling.fields import UndeclaredField, reduced, steps_of, union, values_of

POD = SimpleNamespace(
    request="a GPU",
    pod=SimpleNamespace(
        metadata=SimpleNamespace(annotations={"example.com/rack": "r1", "other": "x"}),
        spec=SimpleNamespace(tolerations=("t",), priority=5, affinity=None),
    ),
)
RACK = "pod.metadata.annotations[example.com/rack]"


def test_values_are_nested_as_their_paths_and_missing_ones_are_none() -> None:
    fields = ("request", "pod.spec.priority", RACK, "pod.metadata.annotations[none]", "pod.spec.affinity.node_affinity")
    metadata, spec = [["r1", None]], [None, 5]
    assert values_of(POD, fields) == [[metadata, spec], "a GPU"]


def test_a_missing_part_is_as_one_without_any_of_its_fields() -> None:
    fields = ("pod.spec.affinity.node_affinity", "pod.spec.priority")
    spec = SimpleNamespace(priority=5, affinity=SimpleNamespace(node_affinity=None))
    assert values_of(SimpleNamespace(pod=SimpleNamespace(spec=spec)), fields) == values_of(POD, fields)


def test_values_of_different_parts_are_not_mixed_up() -> None:
    def pod(left: Any, right: Any) -> SimpleNamespace:
        return SimpleNamespace(left=left, right=right)

    fields = ("left.a", "left.b", "right.a", "right.b")
    part = SimpleNamespace(a=None, b="x")
    assert values_of(pod(part, None), fields) != values_of(pod(None, part), fields)


@pytest.mark.parametrize("wrong", ["", "pod.", "pod.metadata.annotations[", "pod.metadata.annotations[]", "a b"])
def test_what_is_no_path_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no field"):
        steps_of(wrong)


def test_declared_fields_are_read_as_before() -> None:
    seen = reduced(POD, ("request", "pod.spec.tolerations", "pod.spec.affinity.node_affinity", RACK), "Rack (rack)")
    assert (seen.request, seen.pod.spec.tolerations, seen.pod.spec.affinity) == ("a GPU", ("t",), None)
    annotations = seen.pod.metadata.annotations
    assert (annotations.get("example.com/rack"), annotations["example.com/rack"]) == ("r1", "r1")
    assert "example.com/rack" in annotations


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (lambda pod: pod.uid, "uid"),
        (lambda pod: pod.pod.spec.priority, "pod.spec.priority"),
        (lambda pod: pod.pod.metadata.annotations["other"], "pod.metadata.annotations[other]"),
        (lambda pod: pod.pod.metadata.annotations.get("other"), "pod.metadata.annotations[other]"),
        (lambda pod: "other" in pod.pod.metadata.annotations, "pod.metadata.annotations[other]"),
        (lambda pod: dict(pod.pod.metadata.annotations.items()), "pod.metadata.annotations"),
        (lambda pod: list(pod.pod.metadata.annotations), "pod.metadata.annotations"),
        (lambda pod: len(pod.pod.metadata.annotations), "pod.metadata.annotations"),
    ],
)
def test_any_other_field_is_an_error_that_names_it(read: Any, field: str) -> None:
    seen = reduced(POD, ("pod.spec.tolerations", RACK), "Rack (rack)")
    with pytest.raises(UndeclaredField) as error:
        read(seen)
    assert str(error.value).startswith(f"Rack (rack) reads {field}, which it does not declare")


def test_a_field_that_is_declared_as_a_whole_includes_its_parts() -> None:
    seen = reduced(POD, ("pod.spec", "pod.spec.tolerations"), "x")
    assert seen.pod.spec.priority == 5


def test_a_reduced_object_is_reduced_again_to_fewer_fields() -> None:
    seen = reduced(reduced(POD, (RACK, "request"), "the engine"), (RACK,), "Rack (rack)")
    assert seen.pod.metadata.annotations["example.com/rack"] == "r1"
    with pytest.raises(UndeclaredField):
        _ = seen.request


def test_a_union_has_each_field_once() -> None:
    assert union(("b", "a"), ("a",)) == ("a", "b")
