"""Pods of one shape share a row of scores, so nothing outside of the shape may decide it."""

from __future__ import annotations

from typing import Any

import pytest

from services.placement.engine import shape
from services.placement.engine.shape import Row, shape_key, shape_of
from services.placement.policies.binpack import Binpack
from shared.book.book import Book
from shared.book.states import NodeState, PodState, pod_state
from shared.contracts.explain import Reason
from shared.model.affinity import Affinity, NodeAffinity
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
    monkeypatch.setattr(shape, "NODE_FILTERS", (*shape.NODE_FILTERS, Undeclared()))
    placement = Placement().nodes("n", gpus=1)
    row = Row(pod_state(build.gpu_pod("n", gpus=1)), Binpack(placement.core.book), placement.core.book)
    with pytest.raises(AttributeError, match=r"pod\.metadata is not part of a pod's shape.*add it to _fields"):
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
    with pytest.raises(AttributeError, match="is not part of a pod's shape"):
        read(shape_of(state))


def test_a_shape_of_a_shape_is_the_same() -> None:
    """A fork of the book makes its rows from those of the origin."""
    state = pod_state(build.gpu_pod("p", gpus=1))
    assert shape_key(shape_of(state)) == shape_key(state)
