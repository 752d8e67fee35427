"""Which places are reserved: the soonest ones, by the ends of other pods that are known or estimated."""

from __future__ import annotations

from typing import Any

import pytest

from services.placement.scheduling.backfill import choosing
from tests.unit.services.placement.scheduling.backfill.site import Site


@pytest.mark.parametrize(
    ("sooner", "later"),
    [
        ({"started_s_ago": 100}, {"started_s_ago": 1000}),
        ({"annotations": {"kerf.dev/expected-duration": "500s"}}, {"started_s_ago": 1000}),
        ({"active_deadline_seconds": 500}, {"started_s_ago": 1000}),
        ({"started_s_ago": 200}, {"active_deadline_seconds": 500}),
        ({"annotations": {"kerf.dev/expected-duration": "500s"}}, {"active_deadline_seconds": 600}),
    ],
    ids=["young", "expected", "deadline", "younger-than-the-deadline-is-far", "of-two-known-ends"],
)
def test_places_are_where_others_are_expected_to_end_first(sooner: dict[str, Any], later: dict[str, Any]) -> None:
    """A pod that says nothing of its end is expected to run on for as long as it has run."""
    for nodes in ("ab", "ba"):
        site = Site({"a": 2, "b": 2})
        site.runs("sooner", on=nodes[0], **sooner)
        site.runs("later", on=nodes[1], **later)
        site.arrives("large", gpus=2, at=0)
        site.wait()
        assert site.nodes_kept == [[nodes[0]]]


def test_pods_of_servers_are_waited_for_last() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("server", on="a", started_s_ago=1, owners=("ReplicaSet",))
    site.runs("job", on="b", started_s_ago=100_000, owners=("Job",))
    site.arrives("large", gpus=2, at=0)
    site.wait()
    assert site.nodes_kept == [["b"]]


def test_as_few_pods_are_waited_for_as_will_do() -> None:
    site = Site({"a": 4, "b": 4})
    for number in range(4):
        site.runs(f"a{number}", on="a", started_s_ago=10_000 + number)
        site.runs(f"b{number}", on="b", started_s_ago=50 + number)
    site.gang(count=3, gpus=1)
    site.wait()
    (kept,) = site.kept
    book = site.placement.core.book
    assert (kept.nodes, [book.grants[grant_id].name for grant_id in kept.awaits]) == (["b"], ["b0", "b1", "b2"])


def test_nodes_that_the_pod_may_not_use_are_not_waited_for() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("young", on="a", started_s_ago=1)
    site.runs("old", on="b", started_s_ago=1000)
    site.arrives("large", gpus=2, at=0, node_selector={"kubernetes.io/hostname": "b"})
    site.wait()
    assert site.nodes_kept == [["b"]]


def test_what_is_reserved_for_a_more_important_pod_is_not_reserved_again() -> None:
    site = Site({"a": 2, "b": 2}, max_reservations=2)
    site.runs("young", on="a", started_s_ago=1)
    site.runs("old", on="b", started_s_ago=1000)
    site.arrives("first", gpus=2, at=0, priority=1)
    site.arrives("second", gpus=2, at=0)
    site.wait()
    assert site.nodes_kept == [["a"], ["b"]]


def test_a_gang_has_places_within_its_topology_domain() -> None:
    site = Site({})
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2")):
        site.node(name, 2, {"example.com/rack": rack})
    site.runs("young", on="a", started_s_ago=1)
    site.runs("b", on="b", started_s_ago=100)
    site.runs("c", on="c", started_s_ago=100)
    site.gang(notes={"topology": "required=example.com/rack"})
    site.wait()
    assert site.nodes_kept == [["b", "c"]]


def test_cpus_that_pods_without_gpus_have_are_not_waited_for() -> None:
    site = Site({"a": 2, "b": 2})
    site.runs("young", on="a", started_s_ago=1)
    site.runs("old", on="b", started_s_ago=1000)
    site.daemon("daemon", on="a", cpu="60")
    site.arrives("large", gpus=2, at=0, requests={"cpu": "10"})
    site.wait()
    assert site.nodes_kept == [["b"]]


def test_where_too_many_pods_would_have_to_end_whole_nodes_are_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The youngest pods are spread over all nodes, and a node is as far from being empty as its oldest pod."""
    monkeypatch.setattr(choosing, "MOST_AWAITED", 3)
    site = Site({"a": 2, "b": 2, "c": 2})
    for node, ages in (("a", (1, 900)), ("b", (2, 800)), ("c", (3, 1000))):
        for age in ages:
            site.runs(f"{node}-{age}", on=node, started_s_ago=age)
    site.arrives("large", gpus=2, at=0)
    site.wait()
    assert site.nodes_kept == [["b"]]
