"""The facts of a source: everything, in order, each version once."""

from __future__ import annotations

from shared.contracts.facts import Gone, Put
from shared.kube import resources
from shared.kube.transport import MERGE_PATCH
from shared.model.objects import PriorityClass, version
from tests.contract.cluster_source.harness import SourceHarness
from tests.support.waiting import eventually


async def test_a_new_pod_arrives_with_the_defaults_of_the_server(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p", labels={"a": "b"}, annotations={"x.y/z": "1"})
    assert pod.metadata.uid
    assert pod.metadata.namespace == cluster.namespace
    assert pod.metadata.creation_timestamp.endswith("Z")
    assert (pod.metadata.labels, pod.metadata.annotations) == ({"a": "b"}, {"x.y/z": "1"})
    assert pod.status.phase == "Pending"
    assert pod.spec.scheduler_name == "kerf"
    assert pod.spec.termination_grace_period_seconds == 30
    assert pod.spec.containers[0].resources.requests == {"cpu": "100m"}, "requests follow limits"


async def test_a_cluster_that_is_followed_is_reached(cluster: SourceHarness) -> None:
    await cluster.create_pod("p")
    await eventually(cluster.source.reaches, what="an answer")


async def test_a_claim_without_requests_is_a_fact(cluster: SourceHarness) -> None:
    """The API server stores null for its requests; read as no claim at all, its pod would wait without the reason."""
    await cluster.create("ResourceClaim", "empty", {"spec": {"devices": {}}})
    seen = await eventually(lambda: cluster.seen("empty", "ResourceClaim"), what="the claim")
    assert seen.spec.devices.requests == ()


async def test_versions_of_an_object_rise_and_none_arrives_twice(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    for number in range(10):
        await cluster.writes.pods.annotate(cluster.namespace, "p", pod.metadata.uid, {"kerf.dev/touched": str(number)})
    await eventually(
        lambda: cluster.pod("p").metadata.annotations.get("kerf.dev/touched") == "9", what="the last change"
    )
    versions = [version(fact.object.metadata) for fact in cluster.of("p")]
    assert len(versions) == 11
    assert versions == sorted(set(versions))


async def test_a_write_that_changes_nothing_is_no_fact(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p", annotations={"kerf.dev/touched": "same"})
    assert (
        await cluster.writes.pods.annotate(cluster.namespace, "p", pod.metadata.uid, {"kerf.dev/touched": "same"})
    ).outcome == "done"
    await cluster.source.refresh()
    assert len(cluster.of("p")) == 1


async def test_a_pod_with_a_reused_name_is_another_pod(cluster: SourceHarness) -> None:
    first = await cluster.create_pod("p")
    await cluster.request("DELETE", resources.POD.path("p", cluster.namespace), {})
    second = await cluster.create_pod("p")
    assert second.metadata.uid != first.metadata.uid
    assert version(second.metadata) > version(first.metadata)
    found = [
        (type(f), f.object.metadata.uid, f.object.metadata.deletion_timestamp is not None) for f in cluster.of("p")
    ]
    assert found == [
        (Put, first.metadata.uid, False),
        (Put, first.metadata.uid, True),
        (Gone, first.metadata.uid, True),
        (Put, second.metadata.uid, False),
    ]


async def test_a_refresh_includes_all_earlier_changes(cluster: SourceHarness) -> None:
    """Rule R5 depends on this: what a new leader reads may not be older than its query."""
    for number in range(20):
        await cluster.create("Pod", f"p{number}", {"spec": {"containers": [{"name": "c", "image": "i"}]}})
        await cluster.source.refresh()
        assert cluster.seen(f"p{number}") is not None, number


async def test_a_priority_class_becomes_a_number_in_the_pod(cluster: SourceHarness) -> None:
    name = f"urgent-{cluster.namespace}"
    await cluster.create("PriorityClass", name, {"value": 77, "preemptionPolicy": "Never"})
    pod = await cluster.create_pod("p", spec={"priorityClassName": name})
    assert (pod.spec.priority, pod.spec.preemption_policy) == (77, "Never")
    await eventually(lambda: cluster.seen(name, "PriorityClass"), what="the class")
    found = cluster.seen(name, "PriorityClass")
    assert isinstance(found, PriorityClass)
    assert found.value == 77


async def test_an_unknown_priority_class_is_refused(cluster: SourceHarness) -> None:
    spec = {"priorityClassName": "nobody-made-it", "containers": [{"name": "c", "image": "i"}]}
    status, answer = await cluster.request(
        "POST", resources.POD.collection(cluster.namespace), {"metadata": {"name": "p"}, "spec": spec}
    )
    assert status == 403
    assert "no PriorityClass with name nobody-made-it was found" in answer["message"]


async def test_the_removal_of_a_scheduling_gate_is_a_fact(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p", spec={"schedulingGates": [{"name": "example.com/wait"}]})
    assert [g.name for g in pod.spec.scheduling_gates] == ["example.com/wait"]
    assert pod.status.conditions[0].reason == "SchedulingGated"
    path = resources.POD.path("p", cluster.namespace)
    assert (await cluster.request("PATCH", path, {"spec": {"schedulingGates": []}}, content_type=MERGE_PATCH))[0] == 200
    assert (await cluster.changed(pod)).spec.scheduling_gates == ()


async def test_a_pod_in_a_missing_namespace_is_refused(cluster: SourceHarness) -> None:
    status, answer = await cluster.request(
        "POST",
        resources.POD.collection("nowhere"),
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    )
    assert (status, answer["reason"]) == (404, "NotFound")


async def test_a_duplicate_name_is_a_conflict(cluster: SourceHarness) -> None:
    await cluster.create_pod("p")
    status, answer = await cluster.request(
        "POST",
        resources.POD.collection(cluster.namespace),
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    )
    assert (status, answer["reason"]) == (409, "AlreadyExists")
