"""From a user's manifest to a running container: each one gets exactly what its pod was granted."""

from __future__ import annotations

import asyncio
import os

from tests.node.cluster import NodeCluster, expected, given
from tools.sandbox.inside import DRIVER_VERSION

SHAPES = (
    {"gpu_memory": "2Gi"},
    {"gpu_memory": "5Gi"},
    {"gpu_memory": "3Gi", "gpu_compute": "10"},
    {"gpu": "2", "gpu_memory": "8Gi"},
    {"gpu_memory": "11Gi"},
)


async def test_thirty_pods_at_once_get_exactly_their_grants(cluster: NodeCluster) -> None:
    for number in range(3):
        names = [f"slice-{number}-{i}" for i in range(30)]
        await asyncio.gather(*(cluster.create_pod(name, **SHAPES[i % len(SHAPES)]) for i, name in enumerate(names)))
        pods = await cluster.running(*names)
        for name in names:
            assert given(await cluster.inside(name)) == expected(cluster, pods[name]), name
        await cluster.delete(*names)
        await cluster.gone(*names)
        await cluster.free()


async def test_a_slice_has_the_driver_of_the_host_and_other_pods_do_not(cluster: NodeCluster) -> None:
    """Exactly the version of the kernel module, under every name, where the dynamic linker of any image searches by
    default."""
    await cluster.create_pod("slice", gpu="1")
    await cluster.create_pod("plain", spec={"tolerations": [{"operator": "Exists"}], "schedulerName": "kerf"})
    await cluster.running("slice", "plain")
    names = [
        f"libcuda.so.{DRIVER_VERSION}",
        "libcuda.so.1",
        "libcuda.so",
        f"libnvidia-ml.so.{DRIVER_VERSION}",
        "libnvidia-ml.so.1",
    ]
    places = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64"]
    assert sorted((await cluster.inside("slice")).files) == sorted(
        [*(f"{place}/{name}" for place in places for name in names), "/usr/bin/nvidia-smi"]
    )
    plain = await cluster.inside("plain")
    assert (plain.devices, plain.files) == ([], [])
