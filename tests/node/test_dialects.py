"""Manifests in other dialects, on a real kubelet."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cluster.test_admission_webhook import webhook
from tests.node.cluster import NodeCluster, grant_of
from tools.sandbox.node import WORKLOAD

MANIFEST = Path(__file__).resolve().parents[1] / "data" / "gpushare-statefulset.yaml"
DIALECTS = Path(__file__).resolve().parents[1] / "data" / "dialects"


async def test_a_gpushare_statefulset_gets_the_variables_of_its_dialect(cluster: NodeCluster) -> None:
    async with webhook(cluster.whole.plane):
        document = yaml.safe_load(MANIFEST.read_text())
        await cluster.whole.ask("POST", f"/apis/apps/v1/namespaces/{cluster.whole.namespace}/statefulsets", document)
        try:
            pods = await cluster.running(*(f"binpack-1-{i}" for i in range(3)))
            for name, pod in pods.items():
                (share,) = grant_of(pod).containers["binpack-1"].gpus
                found = (await cluster.inside(name, "binpack-1")).environment
                index = next(i for i in range(cluster.gpus.count) if cluster.gpus.uuid(i) == share.uuid)
                variables = {key: value for key, value in found.items() if key.startswith("ALIYUN_COM_GPU_MEM_")}
                wanted = {"IDX": str(index), "DEV": "80", "POD": "3", "CONTAINER": "3"}
                assert {key: variables.get(f"ALIYUN_COM_GPU_MEM_{key}") for key in wanted} == wanted
        finally:
            await cluster.whole.ask(
                "DELETE", f"/apis/apps/v1/namespaces/{cluster.whole.namespace}/statefulsets/binpack-1"
            )


VARIABLES: dict[str, dict[str, str]] = {
    "hami-fraction": {"CUDA_DEVICE_MEMORY_LIMIT_0": "{half_mib}m"},
    "volcano-memory": {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m"},
    "koordinator-bytes": {"CUDA_DEVICE_MEMORY_LIMIT": str(1 << 30), "CUDA_DEVICE_SM_LIMIT": "10"},
    "kai-fraction": {"RUNAI_NUM_OF_GPUS": "0.5", "GPU_PORTION": "0.5"},
    "nos-slice": {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10G"},
    "gpu-manager-part": {},
}


async def test_each_dialects_containers_read_the_variables_of_their_system(cluster: NodeCluster) -> None:
    """And Kerf's own beside them."""
    manifests = [m for file in DIALECTS.glob("*.yaml") for m in yaml.safe_load_all(file.read_text())]
    path = f"/api/v1/namespaces/{cluster.whole.namespace}/pods"
    async with webhook(cluster.whole.plane):
        for manifest in (m for m in manifests if m["metadata"]["name"] in VARIABLES):
            manifest["metadata"].get("labels", {}).pop("priorityClassName", None)
            spec = manifest["spec"] | {"terminationGracePeriodSeconds": 2}
            spec.pop("hostIPC", None)
            spec["containers"] = [c | {"image": WORKLOAD} for c in spec["containers"] if c["name"] == "main"]
            await cluster.whole.ask("POST", path, manifest | {"spec": spec})
    for name, pod in (await cluster.running(*VARIABLES)).items():
        found = (await cluster.inside(name)).environment
        (share,) = grant_of(pod).containers["main"].gpus
        for variable, value in VARIABLES[name].items():
            assert found.get(variable) == value.format(half_mib=share.memory_mib), name
        assert found["KERF_GPU_MEMORY_MIB"] == str(share.memory_mib)
