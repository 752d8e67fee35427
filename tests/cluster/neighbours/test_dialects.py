"""Pods of other systems, unchanged, from creation to bound on a real API server with every policy in force."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.model.grant import decode_grant
from tests.cluster.test_admission_webhook import ask, webhook
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
DATA = Path(__file__).resolve().parents[2] / "data" / "dialects"
GPU_MIB = 40_960
_NUMBERS = itertools.count(1)

SHARES: dict[str, tuple[int, int, int]] = {
    "hami-memory-and-cores": (2, 3000, 300),
    "hami-fraction": (1, GPU_MIB // 2, 0),
    "hami-exclusive": (1, GPU_MIB, 1000),
    "kai-fraction": (1, GPU_MIB // 2, 500),
    "kai-memory": (1, 2000, 0),
    "volcano-memory": (1, 1024, 0),
    "volcano-percentage": (1, GPU_MIB // 4, 200),
    "koordinator-half": (1, GPU_MIB // 2, 500),
    "koordinator-bytes": (1, 1024, 100),
    "gpu-manager-part": (1, 1024, 100),
    "nos-slice": (1, 10_240, 0),
}
"""By pod: GPUs, MiB and thousandths of the compute of each."""


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    async with whole(plane, f"dialects-{next(_NUMBERS)}", gpus=4) as cluster:
        yield cluster


def pods_of(dialect: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DATA / f"{dialect}.yaml").read_text()))


async def test_every_dialects_pods_get_exactly_their_shares(plane: ControlPlane, world: Whole) -> None:
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    await world.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "build"}, "value": 100})
    found: dict[str, tuple[int, int, int]] = {}
    async with webhook(plane):
        for file in sorted(DATA.glob("*.yaml")):
            for manifest in pods_of(file.stem):
                made = await world.ask("POST", path, manifest)
                assert made["metadata"]["annotations"]["kerf.dev/dialect"] == file.stem
                name = made["metadata"]["name"]
                seen = await world.bound(name)
                grant = decode_grant(seen["metadata"]["annotations"]["kerf.dev/grant"])
                assert grant.dialect == file.stem
                shares = grant.containers["main"].gpus
                found[name] = (len(shares), shares[0].memory_mib, shares[0].compute_milli)
                assert len({(share.memory_mib, share.compute_milli) for share in shares}) == 1
    assert found == SHARES
    built = await world.seen("Pod", "kai-fraction")
    assert (built["spec"]["priorityClassName"], built["spec"]["priority"]) == ("build", 100)
    assert built["metadata"]["labels"]["kerf.dev/queue"] == "default-queue"
    assert built["metadata"]["annotations"]["kerf.dev/preemptible"] == "false"


async def test_a_namespaces_label_says_whose_pods_are_taken_over(plane: ControlPlane, world: Whole) -> None:
    """A batch system writes its schedulerName on pods with GPUs and without. The namespace takes over one of them, and
    of the default scheduler's pods those with GPUs."""
    taken = {"take-over.kerf.dev/volcano": "true", "take-over.kerf.dev/default-scheduler": "true"}
    label = {"metadata": {"labels": taken}}
    namespace = f"/api/v1/namespaces/{world.namespace}"
    gpus: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    async with webhook(plane):
        await world.ask("PATCH", namespace, label, content_type="application/merge-patch+json")

        async def reviewed() -> bool:
            """The API server learns of a namespace's label a moment later."""
            return bool((await created("head-probe", "volcano", {}, dry=True))["spec"]["schedulerName"] == "kerf")

        async def created(name: str, scheduler: str, extra: dict[str, Any], *, dry: bool = False) -> dict[str, Any]:
            spec = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "example", **extra}]}
            document = {"metadata": {"name": name}, "spec": spec}
            made: dict[str, Any] = await world.ask("POST", f"{namespace}/pods{'?dryRun=All' if dry else ''}", document)
            return made

        await eventually(reviewed, within_s=WITHIN_S, what="the label is in force")
        await created("head", "volcano", {})
        await created("worker", "volcano", gpus)
        other = await created("other", "kai-scheduler", gpus)
        ordinary = await created("ordinary", "default-scheduler", {})
        await created("plain", "default-scheduler", gpus)
    assert other["spec"]["schedulerName"] == "kai-scheduler"
    assert ordinary["spec"]["schedulerName"] == "default-scheduler"
    assert (await world.bound("plain"))["spec"]["schedulerName"] == "kerf"
    assert (await world.bound("head"))["spec"]["schedulerName"] == "kerf"
    grant = decode_grant((await world.bound("worker"))["metadata"]["annotations"]["kerf.dev/grant"])
    assert [share.compute_milli for share in grant.containers["main"].gpus] == [1000]


async def test_a_field_without_a_word_of_kerf_is_refused_with_what_to_write(plane: ControlPlane, world: Whole) -> None:
    manifest = pods_of("hami")[0]
    manifest["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "mps"}
    async with webhook(plane):
        status, answer = await ask(plane, "POST", f"/api/v1/namespaces/{world.namespace}/pods", manifest)
    message = answer["message"]
    assert status == 403
    assert "kerf.dev/isolation" in message
    assert message.endswith("[foreign-field]")
