"""What a node advertises for autoscalers never makes its kubelet refuse what placement granted."""

from __future__ import annotations

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


async def test_pods_that_request_more_in_sum_than_the_node_advertises_are_admitted(cluster: NodeCluster) -> None:
    """All of a GPU's compute and most of its memory, in two pods: both fit, and as parts of a GPU they request 1.3."""
    amounts = await advertises(cluster)
    gib = amounts["kerf.dev/gpu-memory"] // cluster.gpus.count // (1 << 30)
    computing = [f"compute-{number}" for number in range(cluster.gpus.count)]
    holding = [f"memory-{number}" for number in range(cluster.gpus.count)]
    for name in computing:
        await cluster.create_pod(name, gpu_compute="100", gpu_memory="1Gi")
    for name in holding:
        await cluster.create_pod(name, gpu_memory=f"{gib - 2}Gi")
    await cluster.running(*computing, *holding)
    assert (await advertised(cluster))[MILLI] > amounts[MILLI]
    await cluster.delete(*computing, *holding)
    await cluster.gone(*computing, *holding)
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
