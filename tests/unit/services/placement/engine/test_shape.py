"""Pods of one shape share a row of scores, so nothing outside of the shape may decide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from services.placement.engine import node_classes, shape
from services.placement.engine.shape import Row, shape_key, shape_of
from services.placement.policies.binpack import Binpack
from services.placement.scores import scores
from shared.book.book import Book
from shared.book.states import NodeState, PodState, pod_state
from shared.contracts.explain import Reason
from shared.model.affinity import Affinity, NodeAffinity
from shared.scheduling.fields import UndeclaredField
from shared.scheduling.filters import filters
from shared.scheduling.filters.base import Check, Filter
from tests.support import build
from tests.support.harness.placement import Placement


class Undeclared(Filter):
    """Reads the pod's name, which pods of one shape do not share."""

    name = "undeclared"
    scope = "node"

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        wanted = pod.pod.metadata.name

        def check(node: NodeState) -> Reason | None:
            return None if node.name == wanted else Reason(code="other", sentence="the node has another name")

        return check


def test_a_node_filter_that_reads_a_field_outside_of_the_shape_fails_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = filters()
    monkeypatch.setattr(shape, "filters", lambda: every._replace(node=(*every.node, Undeclared())))
    placement = Placement().nodes("n", gpus=1)
    row = Row(pod_state(build.gpu_pod("n", gpus=1)), Binpack(placement.core.book), placement.core.book)
    with pytest.raises(UndeclaredField, match=r"Undeclared \(undeclared\) reads pod, which it does not declare"):
        row.refresh()


@pytest.mark.parametrize(
    "read",
    [
        lambda pod: pod.uid,
        lambda pod: pod.pod.metadata,
        lambda pod: pod.pod.spec.priority,
        lambda pod: pod.pod.spec.affinity.pod_affinity,
    ],
    ids=["uid", "metadata", "priority", "pod affinity"],
)
def test_a_shape_has_nothing_that_tells_its_pods_apart(read: Any) -> None:
    state = pod_state(build.gpu_pod("p", gpus=1, affinity=Affinity(node_affinity=NodeAffinity())))
    read(state)
    with pytest.raises(UndeclaredField, match="does not declare"):
        read(shape_of(state))


def test_a_shape_of_a_shape_is_the_same() -> None:
    """A fork of the book makes its rows from those of the origin."""
    state = pod_state(build.gpu_pod("p", gpus=1))
    assert shape_key(shape_of(state)) == shape_key(state)


class OnRack(Filter):
    """Reads an annotation of the pod and one of the node, and declares both."""

    name = "on-rack"
    scope = "node"
    reads = ("pod.metadata.annotations[example.com/rack]",)
    reads_node: ClassVar[tuple[str, ...] | None] = ("object.metadata.annotations[example.com/rack]",)

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        wanted = pod.pod.metadata.annotations.get("example.com/rack")

        def check(node: NodeState) -> Reason | None:
            there = None if node.object is None else node.object.metadata.annotations.get("example.com/rack")
            return None if there == wanted else Reason(code="rack", sentence=f"the node is in rack {there}")

        return check


class OnRackUnsaid(OnRack):
    """Declares nothing of the node."""

    reads_node = None


@pytest.fixture
def forget() -> Iterator[None]:
    """The fields are composed once in a process."""
    shape.shape_fields.cache_clear()
    node_classes.node_fields.cache_clear()
    yield
    shape.shape_fields.cache_clear()
    node_classes.node_fields.cache_clear()


@pytest.mark.parametrize("kind", [OnRack, OnRackUnsaid])
@pytest.mark.usefixtures("forget")
def test_pods_and_nodes_are_told_apart_by_what_a_filter_declares(
    monkeypatch: pytest.MonkeyPatch, kind: type[Filter]
) -> None:
    every = filters()
    more = every._replace(node=(*every.node, kind()))
    monkeypatch.setattr(shape, "filters", lambda: more)
    monkeypatch.setattr(node_classes, "filters", lambda: more)
    placement = Placement().nodes("a", "b", gpus=1)
    for name in "ab":
        node = placement.core.book.nodes[name].object
        meta = msgspec.structs.replace(
            node.metadata, annotations={"example.com/rack": f"r-{name}"}, resource_version="9"
        )
        placement.facts(msgspec.structs.replace(node, metadata=meta))
    engine = placement.core.engine
    for name in "ab":
        pod = build.gpu_pod(f"p-{name}", gpus=1)
        pod = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, annotations={"example.com/rack": f"r-{name}"})
        )
        place = engine.decide(pod_state(pod))
        assert place is not None
        assert (place.node, place.feasible_nodes) == (name, 1)


def test_every_built_in_filter_and_score_of_a_node_says_what_it_reads_of_it() -> None:
    """One that did not would be checked on each node instead of once for all that are alike."""
    assert [one.name for one in (*filters().node, *scores().node) if one.reads_node is None] == []


def test_nodes_whose_agents_serve_claims_are_told_apart_from_the_others() -> None:
    assert "inventory.dra" in node_classes.node_fields()
