"""Behaviour of the simulated cluster alone: its kubelet under a clock that the test controls, and its limits.

Its behaviour that equals a real API server's is in tests/contract/cluster_source.
"""

from __future__ import annotations

from typing import Any

import pytest

from services.simulator.cluster import SimulatedCluster
from shared.contracts.facts import Gone, Put


def pod(name: str = "p", *, seconds: str = "", **spec: Any) -> dict[str, Any]:
    notes = {"kerf.dev/sim-seconds": seconds} if seconds else {}
    return {"metadata": {"name": name, "annotations": notes}, "spec": {"containers": [{"name": "c"}], **spec}}


@pytest.fixture
def cluster() -> SimulatedCluster:
    running = SimulatedCluster(uid_prefix="feedbeef", first_version=100, stop_s=2.0)
    assert running.create("Node", {"metadata": {"name": "n"}}, 0.0)[0] == 201
    running.take()
    return running


def bind(cluster: SimulatedCluster, name: str, now: float, node: str = "n") -> None:
    assert cluster.bind("default", name, {"target": {"name": node}}, now)[0] == 201


def phases(cluster: SimulatedCluster) -> list[str]:
    """Of every pod fact since the last look."""
    return [
        "gone" if isinstance(f, Gone) else f.object.status.phase
        for f in cluster.take()
        if type(f.object).__name__ == "Pod"
    ]  # type: ignore[union-attr]


def test_a_bound_pod_runs_at_the_next_tick_and_ends_when_its_time_is_over(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(seconds="2.5"), 1.0)
    assert cluster.next_due is None
    bind(cluster, "p", 2.0)
    assert cluster.next_due == 2.0
    cluster.tick(2.0)
    assert phases(cluster) == ["Pending", "Pending", "Running"]
    assert cluster.next_due == 4.5
    cluster.tick(4.4)
    assert phases(cluster) == []
    cluster.tick(4.5)
    assert phases(cluster) == ["Succeeded"]


def test_a_deleted_pod_stops_before_it_is_removed(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(seconds="1"), 0.0)
    bind(cluster, "p", 0.0)
    cluster.tick(0.0)
    cluster.delete("Pod", "default", "p", {}, 0.5)
    cluster.take()
    cluster.tick(2.4)
    assert cluster.get("Pod", "p", "default") is not None, "what is being stopped does not succeed any more"
    cluster.tick(2.5)
    assert phases(cluster) == ["gone"]


def test_a_pod_on_a_missing_node_never_runs(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(), 0.0)
    bind(cluster, "p", 0.0, node="nowhere")
    cluster.tick(100.0)
    assert phases(cluster) == ["Pending", "Pending"]


def test_the_pods_of_a_deleted_node_are_collected(cluster: SimulatedCluster) -> None:
    for name in ("a", "b"):
        cluster.create("Pod", pod(name), 0.0)
    bind(cluster, "a", 0.0)
    cluster.tick(0.0)
    cluster.delete("Node", "", "n", {}, 1.0)
    cluster.tick(1.0)
    assert cluster.get("Pod", "a", "default") is None
    assert cluster.get("Pod", "b", "default") is not None


def test_a_deletion_of_a_pod_that_has_ended_does_not_wait(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(seconds="1"), 0.0)
    bind(cluster, "p", 0.0)
    cluster.tick(1.0)
    cluster.delete("Pod", "default", "p", {}, 2.0)
    assert cluster.get("Pod", "p", "default") is None


def test_time_for_one_pod_does_not_hit_another_of_its_name(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(seconds="5"), 0.0)
    bind(cluster, "p", 0.0)
    cluster.tick(0.0)
    cluster.delete("Pod", "default", "p", {"gracePeriodSeconds": 0}, 1.0)
    cluster.create("Pod", pod(), 2.0)
    bind(cluster, "p", 2.0)
    cluster.tick(5.0)
    held = cluster.get("Pod", "p", "default")
    assert held is not None
    assert held["status"]["phase"] == "Running"


def test_two_runs_of_the_same_steps_are_equal() -> None:
    """Simulations are repeated by their seed alone."""

    def steps() -> list[Any]:
        cluster = SimulatedCluster()
        cluster.create("Node", {"metadata": {"name": "n"}}, 0.0)
        for number in range(5):
            cluster.create(
                "Pod", {"metadata": {"generateName": "g-"}, "spec": {"containers": [{"name": "c"}]}}, float(number)
            )
        for held in list(cluster.all("Pod")):
            cluster.bind("default", held["metadata"]["name"], {"target": {"name": "n"}}, 9.0)
        cluster.tick(10.0)
        return cluster.take()

    assert steps() == steps()
    assert len(steps()) > 10


def test_uids_and_versions_start_from_the_given_values(cluster: SimulatedCluster) -> None:
    _, created = cluster.create("Pod", pod(), 0.0)
    assert created["metadata"]["uid"].startswith("feedbeef-")
    assert int(created["metadata"]["resourceVersion"]) > 100


def test_a_snapshot_holds_what_is_there_now(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(), 0.0)
    names = sorted(f.object.metadata.name for f in cluster.snapshot() if isinstance(f, Put))
    assert names == ["default", "kerf-system", "kube-system", "n", "p"]


@pytest.mark.parametrize(
    ("kind", "document", "status"),
    [
        ("Pod", {"metadata": {"name": "x"}}, 422),
        ("Pod", {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}, 422),
        ("Lamp", {"metadata": {"name": "x"}}, 404),
        ("Pod", {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c"}], "priority": "high"}}, 400),
        ("Node", {"metadata": {"name": "n"}}, 409),
        ("Pod", pod("x", seconds="soon"), 422),
    ],
)
def test_an_invalid_request_is_refused_and_leaves_nothing(
    cluster: SimulatedCluster, kind: str, document: Any, status: int
) -> None:
    before = cluster.version
    assert cluster.create(kind, document, 0.0)[0] == status
    assert cluster.take() == []
    assert cluster.version == before


def test_a_replacement_keeps_what_a_pod_may_not_change(cluster: SimulatedCluster) -> None:
    cluster.create("Pod", pod(schedulingGates=[{"name": "a/b"}, {"name": "c/d"}], nodeSelector={"x": "y"}), 0.0)
    changed = {
        "metadata": {"name": "p", "labels": {"l": "1"}},
        "spec": {"containers": [{"name": "other"}], "schedulingGates": [{"name": "c/d"}]},
    }
    status, held = cluster.replace("Pod", changed)
    assert status == 200
    assert held["metadata"]["labels"] == {"l": "1"}
    assert held["spec"]["schedulingGates"] == [{"name": "c/d"}]
    assert (held["spec"]["containers"][0]["name"], held["spec"]["nodeSelector"]) == ("c", {"x": "y"})


@pytest.mark.parametrize(
    ("budget", "may_go"),
    [
        ({"minAvailable": 2}, False),
        ({"minAvailable": 1}, True),
        ({"maxUnavailable": 1}, True),
        ({"maxUnavailable": 0}, False),
        ({"minAvailable": "50%"}, True),
        ({"minAvailable": "51%"}, False),
    ],
)
def test_a_budget_counts_what_is_healthy(cluster: SimulatedCluster, budget: Any, may_go: bool) -> None:
    for name in ("a", "b"):
        created = pod(name)
        created["metadata"]["labels"] = {"app": "x"}
        cluster.create("Pod", created, 0.0)
        bind(cluster, name, 0.0)
    cluster.tick(0.0)
    spec = {"selector": {"matchLabels": {"app": "x"}}, **budget}
    cluster.create("PodDisruptionBudget", {"metadata": {"name": "b"}, "spec": spec}, 0.0)
    assert (cluster.evict("default", "a", {}, 1.0)[0] == 201) is may_go
    if may_go and "minAvailable" in budget:
        assert cluster.evict("default", "b", {}, 1.0)[0] == 429, "one has gone; the budget has nothing left"
