"""What a node advertises for autoscalers never makes its kubelet refuse what placement granted."""

from __future__ import annotations

from typing import Any

from shared.model.units import whole
from tests.node.cluster import NODE, WITHIN_S, NodeCluster
from tests.support.waiting import eventually

MILLI = "kerf.dev/quota-gpu-milli"


async def advertised(cluster: NodeCluster) -> dict[str, int]:
    """Kerf's amounts in the node's status, without the slots."""
    node = await cluster.whole.ask("GET", f"/api/v1/nodes/{NODE}")
    amounts = node["status"]["allocatable"]
    return {k: whole(v) for k, v in amounts.items() if k.startswith("kerf.dev/") and k != "kerf.dev/slot"}


async def advertises(cluster: NodeCluster) -> dict[str, int]:
    async def there() -> dict[str, int]:
        found = await advertised(cluster)
        return found if found.get(MILLI) else {}

    found: dict[str, int] = await eventually(there, within_s=WITHIN_S, every_s=0.1, what="the node advertises its GPUs")
    return found


async def ended(cluster: NodeCluster, *names: str) -> dict[str, Any]:
    async def all_ended() -> dict[str, Any]:
        pods = await cluster.pods()
        over = {n: pods[n]["status"] for n in names if pods[n]["status"].get("phase") in ("Succeeded", "Failed")}
        return over if len(over) == len(names) else {}

    found: dict[str, Any] = await eventually(all_ended, within_s=WITHIN_S, every_s=0.1, what=f"{len(names)} pods ended")
    return found


async def test_twice_as_many_halves_as_gpus_run_and_request_kerf_gpu_once_each(cluster: NodeCluster) -> None:
    amounts = await advertises(cluster)
    assert amounts["kerf.dev/gpu-compute"] == 100 * cluster.gpus.count
    halves = [f"half-{number}" for number in range(2 * cluster.gpus.count)]
    for name in halves:
        await cluster.create_pod(name, gpu="1", gpu_compute="50")
    await cluster.running(*halves)
    await cluster.delete(*halves)
    await cluster.gone(*halves)
    await cluster.free()


async def test_pods_that_follow_each_other_at_once_are_all_admitted(cluster: NodeCluster) -> None:
    """A slice is returned when its container has ended, which the kubelet may not have noticed when it admits the
    next pod; by its sums two pods then request the whole node."""
    await advertises(cluster)
    jobs = [f"whole-{number}" for number in range(6)]
    for name in jobs:
        await cluster.create_pod(name, args=["once"], gpu=str(cluster.gpus.count), spec={"restartPolicy": "Never"})
    over = await ended(cluster, *jobs)
    assert {name: status.get("reason", "") for name, status in over.items()} == dict.fromkeys(jobs, "")
    assert {status["phase"] for status in over.values()} == {"Succeeded"}
    await cluster.delete(*jobs)
    await cluster.free()


async def test_what_a_kubelet_has_zeroed_is_advertised_again(cluster: NodeCluster) -> None:
    before = await advertises(cluster)
    zeroed = dict.fromkeys(before, "0")
    await cluster.whole.ask(
        "PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": zeroed, "allocatable": zeroed}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    after = await advertises(cluster)
    assert after.keys() == before.keys()
    assert all(after[name] > 0 for name in after)
