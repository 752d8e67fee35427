"""The other writes: patches, conditions, labels, deletion, eviction, Events, volumes."""

from __future__ import annotations

from typing import Any

from shared.contracts.commands import AnnounceEvent, DeletePod, Evict
from shared.kube import resources
from shared.kube.transport import STRATEGIC_PATCH
from shared.model.objects import Pod
from tests.contract.cluster_source.harness import SourceHarness
from tests.support.waiting import eventually

NOW_S = 1_795_000_000.0


def delete(pod: Pod, **changes: Any) -> DeletePod:
    return DeletePod(
        **{
            "uid": pod.metadata.uid,
            "namespace": pod.metadata.namespace,
            "name": pod.metadata.name,
            "reason": "test",
            **changes,
        }
    )


def evict(pod: Pod, **changes: Any) -> Evict:
    return Evict(
        **{
            "uid": pod.metadata.uid,
            "namespace": pod.metadata.namespace,
            "name": pod.metadata.name,
            "reason": "test",
            **changes,
        }
    )


async def bound(cluster: SourceHarness, name: str = "p", **metadata: Any) -> Pod:
    """A running pod on a node."""
    pod = await cluster.create_pod(name, **metadata)
    assert (await cluster.bind(pod, await cluster.create_node())).outcome == "done"
    await cluster.run_pod(name)
    return cluster.pod(name)


async def test_a_touch_changes_the_resource_version(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    touched = await cluster.writes.pods.annotate(cluster.namespace, "p", pod.metadata.uid, {"kerf.dev/touched": "t1"})
    assert touched.outcome == "done"
    assert (await cluster.changed(pod)).metadata.annotations == {"kerf.dev/touched": "t1"}


async def test_a_touch_never_changes_another_pod_of_the_same_name(cluster: SourceHarness) -> None:
    await cluster.create_pod("p")
    assert (
        await cluster.writes.pods.annotate(cluster.namespace, "p", "somebody-else", {"kerf.dev/touched": "t"})
    ).outcome == "gone"
    assert (
        await cluster.writes.pods.annotate(cluster.namespace, "q", "somebody-else", {"kerf.dev/touched": "t"})
    ).outcome == "gone"


async def test_a_pod_with_the_maximum_of_annotations_is_touched_by_its_status(cluster: SourceHarness) -> None:
    """Otherwise a tenant could block every recovery after a loss of NATS."""
    pod = await cluster.create_pod("p", annotations={"a": "x" * (256 * 1024 - 1)})
    by_annotation = await cluster.writes.pods.annotate(
        cluster.namespace, "p", pod.metadata.uid, {"kerf.dev/touched": "t1"}
    )
    assert by_annotation.outcome == "refused"
    assert "may not be more than 262144 bytes" in by_annotation.message
    for token in ("t1", "t2"):
        assert (
            await cluster.writes.pods.mark_touched(cluster.namespace, "p", pod.metadata.uid, token=token)
        ).outcome == "done"
        pod = await cluster.changed(pod)
    assert [c.message for c in pod.status.conditions if c.type == "kerf.dev/touched"] == ["t2"]
    assert (
        await cluster.writes.pods.mark_touched(cluster.namespace, "p", "somebody-else", token="t3")
    ).outcome == "gone"


async def test_a_report_is_a_condition_next_to_the_others(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    other = {"status": {"conditions": [{"type": "example.com/Other", "status": "True"}]}}
    await cluster.request(
        "PATCH", resources.POD.path("p", cluster.namespace, sub="status"), other, content_type=STRATEGIC_PATCH
    )
    pod = await cluster.changed(pod)
    for message in ("first", "second"):
        result = await cluster.writes.pods.report_unscheduled(
            cluster.namespace, "p", pod.metadata.uid, reason="Unschedulable", message=message, now_s=NOW_S
        )
        assert result.outcome == "done"
    await eventually(lambda: len(cluster.of("p")) == 4, what="both reports")
    conditions = {c.type: (c.status, c.reason, c.message) for c in cluster.pod("p").status.conditions}
    assert conditions == {"example.com/Other": ("True", "", ""), "PodScheduled": ("False", "Unschedulable", "second")}


async def test_a_late_report_does_not_change_a_newer_pod(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    await cluster.bind(pod, "somewhere")
    result = await cluster.writes.pods.report_unscheduled(
        cluster.namespace, "p", pod.metadata.uid, reason="Unschedulable", message="late", now_s=NOW_S,
        resource_version=pod.metadata.resource_version,
    )  # fmt: skip
    assert result.outcome == "conflict"


async def test_node_labels_are_set_and_removed(cluster: SourceHarness) -> None:
    node = await cluster.create_node()
    assert (
        await cluster.writes.objects.label_node(node, {"nvidia.com/gpu.product": "NVIDIA-H100", "x": "y"})
    ).outcome == "done"
    assert (await cluster.writes.objects.label_node(node, {"x": None})).outcome == "done"
    await eventually(lambda: len(cluster.of(node, "Node")) == 3, what="both changes")
    assert cluster.seen(node, "Node").metadata.labels == {"nvidia.com/gpu.product": "NVIDIA-H100"}
    assert (await cluster.writes.objects.label_node("nobody", {"x": "y"})).outcome == "gone"
    assert (await cluster.writes.objects.label_node(node, {"no key": "y"})).outcome == "refused"


async def test_a_pending_pod_is_deleted_at_once(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    assert (await cluster.writes.pods.delete(delete(pod))).outcome == "done"
    last = await cluster.gone("p")
    assert (last.certain, last.object.metadata.uid) == (True, pod.metadata.uid)


async def test_a_bound_pod_is_first_terminating_and_then_gone(cluster: SourceHarness) -> None:
    pod = await bound(cluster)
    assert (await cluster.writes.pods.delete(delete(pod))).outcome == "done"
    await eventually(
        lambda: any(f.object.metadata.deletion_timestamp for f in cluster.of("p")), what="the start of the deletion"
    )
    leaving = next(f.object for f in cluster.of("p") if f.object.metadata.deletion_timestamp)
    assert leaving.metadata.deletion_grace_period_seconds == 30
    await cluster.finish_pod("p")
    assert (await cluster.gone("p")).certain


async def test_a_deletion_needs_the_right_uid_and_version(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    assert (await cluster.writes.pods.delete(delete(pod, uid="another"))).outcome == "conflict"
    assert (await cluster.writes.pods.delete(delete(pod, resource_version="1"))).outcome == "conflict"
    assert (await cluster.writes.pods.delete(delete(pod, name="nobody"))).outcome == "gone"
    assert (
        await cluster.writes.pods.delete(delete(pod, resource_version=pod.metadata.resource_version))
    ).outcome == "done"


async def test_an_eviction_without_budgets_is_a_deletion(cluster: SourceHarness) -> None:
    pod = await bound(cluster)
    assert (await cluster.writes.pods.evict(evict(pod, uid="another"))).outcome == "gone"
    assert (await cluster.writes.pods.evict(evict(pod, resource_version="1"))).outcome == "conflict"
    assert (await cluster.writes.pods.evict(evict(pod, name="nobody"))).outcome == "gone"
    assert (await cluster.writes.pods.evict(evict(pod))).outcome == "done"
    await eventually(
        lambda: any(f.object.metadata.deletion_timestamp for f in cluster.of("p")), what="the start of the deletion"
    )


async def test_a_disruption_budget_throttles_an_eviction(cluster: SourceHarness) -> None:
    """A real cluster without its disruption controller answers the same: no pod may be evicted yet."""
    pod = await bound(cluster, labels={"app": "precious"})
    await cluster.create(
        "PodDisruptionBudget", "keep", {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "precious"}}}}
    )
    refused = await cluster.writes.pods.evict(evict(pod))
    assert refused.outcome == "throttled"
    assert refused.message
    assert cluster.pod("p").metadata.deletion_timestamp is None


async def test_an_event_on_a_node(cluster: SourceHarness) -> None:
    """Nodes are in no namespace, and their Events in `default`."""
    event = AnnounceEvent(
        uid="uid-n", namespace="default", name="n", type="Warning", reason="NoGpuFound", note="no driver", kind="Node"
    )
    name = f"n.{cluster.namespace}"
    assert (await cluster.writes.events.announce(event, event_name=name, now_s=NOW_S)).outcome == "done"
    status, held = await cluster.request("GET", resources.EVENT.path(name, "default"))
    assert status == 200
    assert (held["regarding"]["kind"], held["regarding"]["name"], held["type"]) == ("Node", "n", "Warning")
    assert not held["regarding"].get("namespace")


async def test_an_event_needs_a_unique_name(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    event = AnnounceEvent(
        uid=pod.metadata.uid,
        namespace=cluster.namespace,
        name="p",
        reason="Scheduled",
        action="Binding",
        note="x" * 5000,
    )
    assert (await cluster.writes.events.announce(event, event_name="p.1", now_s=NOW_S)).outcome == "done"
    assert (await cluster.writes.events.announce(event, event_name="p.1", now_s=NOW_S)).outcome == "conflict"
    status, held = await cluster.request("GET", resources.EVENT.path("p.1", cluster.namespace))
    assert status == 200
    assert (held["reason"], held["reportingController"], held["regarding"]["uid"]) == (
        "Scheduled",
        "kerf",
        pod.metadata.uid,
    )
    assert len(held["note"]) == 1024


async def test_a_claim_with_late_binding_gets_its_node(cluster: SourceHarness) -> None:
    await cluster.create(
        "PersistentVolumeClaim",
        "data",
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
    )
    assert (await cluster.writes.objects.select_node(cluster.namespace, "data", "n1")).outcome == "done"
    await eventually(lambda: len(cluster.of("data", "PersistentVolumeClaim")) == 2, what="the change")
    assert (
        cluster.seen("data", "PersistentVolumeClaim").metadata.annotations["volume.kubernetes.io/selected-node"] == "n1"
    )


async def test_a_volume_is_reserved_once(cluster: SourceHarness) -> None:
    name = f"volume-{cluster.namespace}"
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}}
    made = await cluster.create("PersistentVolume", name, {"spec": spec})
    seen = made["metadata"]["resourceVersion"]
    for claim, outcome in (("first", "done"), ("second", "conflict")):
        result = await cluster.writes.objects.reserve_volume(
            name, seen, namespace=cluster.namespace, claim=claim, claim_uid=f"uid-of-{claim}"
        )
        assert result.outcome == outcome
    await eventually(lambda: cluster.seen(name, "PersistentVolume").spec.claim_ref, what="the reservation")
    assert cluster.seen(name, "PersistentVolume").spec.claim_ref.uid == "uid-of-first"
