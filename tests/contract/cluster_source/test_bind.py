"""A Binding sets node and grant in one write, only for the intended pod in the intended version."""

from __future__ import annotations

import msgspec

from shared.contracts.commands import Bind
from shared.kube import resources
from tests.contract.cluster_source.harness import SourceHarness
from tests.support.waiting import eventually


async def test_node_and_grant_become_true_at_once(cluster: SourceHarness) -> None:
    node = await cluster.create_node()
    pod = await cluster.create_pod("p", annotations={"own": "kept"})
    assert (await cluster.bind(pod, node, grant='{"v":1}')).outcome == "done"
    bound = await cluster.changed(pod)
    assert bound.spec.node_name == node
    assert bound.metadata.annotations == {"own": "kept", "kerf.dev/grant": '{"v":1}'}
    assert [(c.status) for c in bound.status.conditions if c.type == "PodScheduled"] == ["True"]
    between = [
        f.object
        for f in cluster.of("p")
        if (f.object.spec.node_name == "") != ("kerf.dev/grant" not in f.object.metadata.annotations)
    ]
    assert between == [], "no version has one without the other"


async def test_repeating_a_binding_is_harmless(cluster: SourceHarness) -> None:
    node = await cluster.create_node()
    pod = await cluster.create_pod("p")
    assert (await cluster.bind(pod, node)).outcome == "done"
    assert (await cluster.bind(pod, node)).outcome == "conflict"
    now = await cluster.changed(pod)
    again = await cluster.bind(now, node)
    assert again.outcome == "conflict", "even at the current version: it is bound"
    assert "already assigned to node" in again.message or "Precondition failed" in again.message


async def test_a_binding_at_an_old_version_is_a_conflict(cluster: SourceHarness) -> None:
    node = await cluster.create_node()
    pod = await cluster.create_pod("p")
    await cluster.writes.pods.annotate(cluster.namespace, "p", pod.metadata.uid, {"kerf.dev/touched": "1"})
    late = await cluster.bind(pod, node)
    assert late.outcome == "conflict"
    assert "ResourceVersion in precondition" in late.message
    assert (await cluster.changed(pod)).spec.node_name == ""


async def test_a_binding_for_another_pod_of_the_same_name_is_a_conflict(cluster: SourceHarness) -> None:
    node = await cluster.create_node()
    first = await cluster.create_pod("p")
    await cluster.request("DELETE", resources.POD.path("p", cluster.namespace), {})
    second = await cluster.create_pod("p")
    assert (await cluster.bind(first, node, resource_version=second.metadata.resource_version)).outcome == "conflict"
    assert cluster.pod("p").spec.node_name == ""


async def test_a_binding_for_a_missing_pod_reports_it_as_gone(cluster: SourceHarness) -> None:
    order = Bind(uid="u", namespace=cluster.namespace, name="nobody", resource_version="1", node="n")
    assert (await cluster.writes.bindings.bind(order)).outcome == "gone"


async def test_a_binding_for_a_gated_pod_is_a_conflict(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p", spec={"schedulingGates": [{"name": "example.com/wait"}]})
    refused = await cluster.bind(pod, await cluster.create_node())
    assert refused.outcome == "conflict"
    assert "non-empty .spec.schedulingGates" in refused.message


async def test_a_binding_to_an_unknown_node_succeeds(cluster: SourceHarness) -> None:
    """The server does not check it, so the watcher must."""
    pod = await cluster.create_pod("p")
    assert (await cluster.bind(pod, "nowhere")).outcome == "done"
    assert (await cluster.changed(pod)).spec.node_name == "nowhere"


async def test_a_binding_with_an_invalid_annotation_key_is_never_sent(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    order = Bind(
        uid=pod.metadata.uid,
        namespace=cluster.namespace,
        name="p",
        resource_version=pod.metadata.resource_version,
        node="n",
    )
    refused = await cluster.writes.bindings.bind(order, {"not a key!": "x"})
    assert refused.outcome == "refused"
    assert "nothing was sent" in refused.message
    assert len(cluster.of("p")) == 1


async def test_a_binding_without_preconditions_is_never_sent(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    whole = Bind(
        uid=pod.metadata.uid,
        namespace=cluster.namespace,
        name="p",
        resource_version=pod.metadata.resource_version,
        node="n",
    )
    for field in ("uid", "resource_version", "node"):
        assert (await cluster.writes.bindings.bind(msgspec.structs.replace(whole, **{field: ""}))).outcome == "refused"


async def test_a_binding_for_a_terminating_pod_is_a_conflict(cluster: SourceHarness) -> None:
    pod = await cluster.create_pod("p")
    # A node that exists: the controller manager's garbage collection removes the pods of one that does not.
    await cluster.bind(pod, await cluster.create_node())
    await cluster.request("DELETE", resources.POD.path("p", cluster.namespace), {})
    await eventually(lambda: cluster.pod("p").metadata.deletion_timestamp, what="the start of the deletion")
    assert (await cluster.bind(cluster.pod("p"), "elsewhere")).outcome == "conflict"
