"""Manifests in other dialects, on a real kubelet."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cluster.test_admission_webhook import webhook
from tests.node.cluster import NodeCluster, grant_of

MANIFEST = Path(__file__).resolve().parents[1] / "data" / "gpushare-statefulset.yaml"


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
