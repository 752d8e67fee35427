"""Nothing starts without a grant that is valid on this node, and the pod's events say why.

The pods here ask for a GPU model that the node has not, so placement keeps them pending. Then they are bound around it,
as by an account with the watcher's permissions, and the agent's orders are sent to it directly over NATS.
"""

from __future__ import annotations

from typing import Any

from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant
from shared.contracts.queries import StatusAnswer, StatusQuery
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.node.cluster import NodeCluster, expected, given, grant_of
from tools.sandbox.node import NODE


async def _term(cluster: NodeCluster) -> int:
    return decode(
        await cluster.whole.made.bus.request(queries.STATUS.subject, encode(StatusQuery())), StatusAnswer
    ).term


async def _tell(cluster: NodeCluster, order: NodeGrant) -> Accepted:
    return decode(await cluster.whole.made.bus.request(subjects.node_command(NODE, "grant"), encode(order)), Accepted)


async def _bound_by_hand(cluster: NodeCluster, name: str) -> str:
    await cluster.create_pod(name, gpu="1", annotations={"kerf.dev/gpu-model": "of-no-node"})
    await cluster.whole.event(name, "FailedScheduling")
    return await cluster.bind_by_hand(name)


async def _never_ran(cluster: NodeCluster, name: str, code: str) -> None:
    """The kubelet has tried, was refused, and reports no container."""
    await cluster.wait_for_event(name, "PreStartContainer", code)
    pod: Any = (await cluster.pods())[name]
    assert pod["status"]["phase"] == "Pending"
    (status,) = pod["status"]["containerStatuses"]
    assert (status["started"], status["restartCount"], status.get("containerID", "")) == (False, 0, "")
    assert "waiting" in status["state"]


def _order(cluster: NodeCluster, uid: str, name: str, *, term: int, memory_mib: int = 1024) -> NodeGrant:
    share = GpuShare(node=NODE, uuid=cluster.gpus.uuid(0), memory_mib=memory_mib, compute_milli=0)
    grant = Grant(
        grant_id=f"by-hand-{name}", term=term, containers={"main": ContainerGrant(strategy="advisory", gpus=(share,))}
    )
    return NodeGrant(term=term, uid=uid, namespace=cluster.whole.namespace, name=name, grant=grant)


async def test_a_pod_bound_without_a_grant_never_runs(cluster: NodeCluster) -> None:
    await _bound_by_hand(cluster, "bare")
    await _never_ran(cluster, "bare", "no-grant")


async def test_a_grant_of_an_old_term_starts_nothing(cluster: NodeCluster) -> None:
    uid = await _bound_by_hand(cluster, "old")
    answer = await _tell(cluster, _order(cluster, uid, "old", term=await _term(cluster) - 1))
    assert not answer.ok
    assert "is over" in answer.reason
    await _never_ran(cluster, "old", "no-grant")


async def test_a_grant_that_exceeds_the_gpu_starts_nothing(cluster: NodeCluster) -> None:
    uid = await _bound_by_hand(cluster, "huge")
    assert (await _tell(cluster, _order(cluster, uid, "huge", term=await _term(cluster), memory_mib=81_921))).ok
    await _never_ran(cluster, "huge", "gpu-memory-full")


async def test_a_copied_grant_starts_nothing_and_its_owner_keeps_it(cluster: NodeCluster) -> None:
    await cluster.create_pod("owner", gpu_memory="3Gi")
    owner = (await cluster.running("owner"))["owner"]
    uid = await _bound_by_hand(cluster, "thief")
    stolen = NodeGrant(
        term=await _term(cluster), uid=uid, namespace=cluster.whole.namespace, name="thief", grant=grant_of(owner)
    )
    assert not (await _tell(cluster, stolen)).ok
    await _never_ran(cluster, "thief", "no-grant")
    assert given(await cluster.inside("owner")) == expected(cluster, owner)
