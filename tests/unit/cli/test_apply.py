"""What commands read from files of manifests, and what they say of those that cannot be read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.apply import read_manifests
from cli.delete import _order_of, _orders
from cli.output import Failure, read_pod
from cli.up import _preemption
from shared.contracts.base import encode

BAD = {
    "a 13th month": "kind: Pod\nmetadata: {name: p, creationTimestamp: 2026-13-01}",
    "a tag": "kind: Pod\nmetadata: {name: !!int x}",
    "depth": "kind: Pod\nmetadata: " + "{a: " * 2000 + "1" + "}" * 2000,
    "a null key": "kind: Pod\nmetadata: {name: p, null: 1}",
    "digits": "kind: Pod\nmetadata: {name: p, x: " + "9" * 5000 + "}",
    "no YAML": "kind: [",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("read", [read_manifests, read_pod])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, read: Callable[[str], object]) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    with pytest.raises(Failure, match=r"pod\.yaml is neither YAML nor JSON"):
        read(str(file))


def test_what_was_read_can_be_sent(tmp_path: Path) -> None:
    """Times in YAML are texts in JSON."""
    file = tmp_path / "pods.yaml"
    file.write_text("kind: Pod\nmetadata: {name: p, 5: 2026-01-01}\n---\n---\nkind: Node\nmetadata: {name: n}")
    pod, node = read_manifests(str(file))
    assert pod["metadata"] == {"name": "p", "5": "2026-01-01"}
    assert msgspec.json.decode(encode(_order_of(node, "team")))["name"] == "n"


@pytest.mark.parametrize(
    "text", ["kind: [a]", "kind: 5", "a", "kind: Pod\nmetadata: p", "kind: Pod\nmetadata: {name: 5}"]
)
def test_a_document_without_a_kind_or_a_name_deletes_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    with pytest.raises(Failure, match=r"kind|name"):
        [_order_of(document, "team") for document in read_manifests(str(file))]


def test_an_old_manifest_without_metadata_gets_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "set.yaml"
    file.write_text("kind: Deployment\napiVersion: apps/v1beta1\nmetadata: web")
    with pytest.raises(Failure, match="write apiVersion: apps/v1"):
        read_manifests(str(file))


@pytest.mark.parametrize("value", ["2026-13-01", "!!int x", "[", "soon"])
def test_a_setting_of_the_preemptor_that_cannot_be_read_is_named(value: str) -> None:
    with pytest.raises(Failure, match="--preemptor: "):
        _preemption([f"patience_s={value}"])


def test_a_workload_is_named_as_other_objects_are() -> None:
    (order,) = _orders(argparse.Namespace(file="", target=["deployments", "team/web"], namespace="default"))
    assert (order.kind, order.namespace, order.name) == ("Deployment", "team", "web")
