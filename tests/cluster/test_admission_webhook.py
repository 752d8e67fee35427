"""The webhook behind a real API server and controller manager: foreign manifests, unchanged, become Kerf's pods."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.admission.service import Admission, Config
from shared.service import Lifecycle, running
from shared.telemetry.trace_ids import parse_traceparent
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.waiting import eventually
from tests.unit.services.admission.pods import container, pod
from tools import pki
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
HARD = {"kerf.dev/isolation": "hard"}
DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip("etcd", "kube-apiserver", "kube-controller-manager")
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries, controllers=True).start()
        try:
            manifests.apply_all(made, "00-", "10-", "11-", "20-", "21-", "22-", "23-")
            manifests.wait_for_policies(made)
            yield made
        finally:
            made.stop()


async def ask(plane: ControlPlane, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, answer = await asyncio.to_thread(plane.request, method, path, body)
    return status, json.loads(answer)


@contextlib.asynccontextmanager
async def webhook(plane: ControlPlane, *, probe: str = "default", **settings: Any) -> AsyncIterator[Admission]:
    """The service with a certificate of the cluster's authority, and the configuration that leads to it. `probe`: a
    namespace whose pods come to it."""
    if not (plane.pki / "webhook.crt").exists():
        pki.issue(plane.pki, "webhook", "/CN=kerf-admission", names=pki.SERVER_NAMES, server=True)
    services: list[Admission] = []

    class Known(Admission):
        async def start(self, ctx: Any) -> None:
            await super().start(ctx)
            services.append(self)

    files = {"certificate_file": str(plane.pki / "webhook.crt"), "key_file": str(plane.pki / "webhook.key")}
    async with running(
        Known, Config(host="127.0.0.1", port=0, **files, **settings), lifecycle=Lifecycle(trace_ratio=1.0)
    ):
        (config,) = manifests.load("24-")
        for hook in config["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            authority = base64.b64encode((plane.pki / "ca.crt").read_bytes()).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{services[0].port}{path}", "caBundle": authority}
        status, answer = await asyncio.to_thread(manifests.apply, plane, config)
        assert status in (200, 201), answer
        # A webhook takes effect shortly after it was accepted.
        await eventually(lambda: _in_force(plane, probe), what="the webhook answers")
        yield services[0]


async def _in_force(plane: ControlPlane, namespace: str) -> bool:
    status, answer = await ask(
        plane, "POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", named("probe", pod(container(mem=1)))
    )
    return status == 201 and answer["spec"]["schedulerName"] == "kerf"


def named(name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": {**manifest["metadata"], "name": name, "namespace": None}}


async def test_gpushares_statefulset_runs_without_changes_to_its_manifest(plane: ControlPlane) -> None:
    """The manifest of the KubeCon talk, through the real StatefulSet controller: three pods of 3 GiB, placed by
    Kerf."""
    text = (DATA / "gpushare-statefulset.yaml").read_text()
    async with webhook(plane):
        status, _ = await ask(plane, "POST", "/apis/apps/v1/namespaces/default/statefulsets", yaml.safe_load(text))
        assert status == 201

        async def three() -> list[dict[str, Any]] | None:
            pods = (await ask(plane, "GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Dbinpack-1"))[1][
                "items"
            ]
            return pods if len(pods) == 3 else None

        for made in await eventually(three, within_s=30):
            limits = made["spec"]["containers"][0]["resources"]["limits"]
            assert (
                limits
                == {"kerf.dev/gpu-memory": "3Gi", "kerf.dev/slot": "1", "kerf.dev/quota-gpu-milli": "38"}
                == made["spec"]["containers"][0]["resources"]["requests"]
            )
            assert made["spec"]["schedulerName"] == "kerf"
            assert made["metadata"]["annotations"]["kerf.dev/dialect"] == "gpushare"
            assert made["metadata"]["annotations"]["kerf.dev/isolation"] == "soft"


@pytest.mark.parametrize(
    ("annotations", "limits"),
    [
        ({"gpu-fraction": "0.5"}, {"gpu": "1", "gpu-compute": "50"}),
        ({"gpu-memory": "2048"}, {"gpu": "1", "gpu-memory": "2Gi"}),
        ({"nvidia.com/container.main.gpu-memory.request": "2Gi"}, {"gpu": "1", "gpu-memory": "2Gi"}),
        ({"nvidia.com/container.main.gpu-memory.limit": "3Gi"}, {"gpu": "1", "gpu-memory": "3Gi"}),
    ],
    ids=["fraction", "memory", "NvFractions request", "NvFractions limit"],
)
async def test_each_of_kais_annotations_brings_its_pod_to_the_webhook(
    plane: ControlPlane, annotations: dict[str, str], limits: dict[str, str]
) -> None:
    """The forms of docs/gpu-sharing in KAI-Scheduler, each alone, with its scheduler or its queue."""
    manifests_by_name = {
        "scheduler": pod(container(), annotations=annotations, schedulerName="kai-scheduler"),
        "queue": pod(container(), annotations=annotations, labels={"kai.scheduler/queue": "team"}),
    }
    async with webhook(plane):
        for name, manifest in manifests_by_name.items():
            status, made = await ask(
                plane, "POST", "/api/v1/namespaces/default/pods?dryRun=All", named(f"kai-{name}", manifest)
            )
            assert (status, made["spec"]["schedulerName"]) == (201, "kerf"), made
            got = made["spec"]["containers"][0]["resources"]["limits"]
            asked = {key: got.get(f"kerf.dev/{key}") for key in ("gpu", "gpu-memory", "gpu-compute")}
            assert asked == {"gpu-memory": None, "gpu-compute": None} | limits
            assert made["metadata"]["annotations"]["kerf.dev/dialect"] == "kai"


async def test_a_review_leaves_its_trace_on_the_pod(plane: ControlPlane) -> None:
    """The pod's own trace, which begins with its UID, can link to it."""
    async with webhook(plane):
        status, answer = await ask(
            plane, "POST", "/api/v1/namespaces/default/pods", named("traced", pod(container(mem=1)))
        )
    assert status == 201
    assert parse_traceparent(answer["metadata"]["annotations"]["kerf.dev/admission-traceparent"]).sampled


async def test_a_refusal_reaches_the_user_verbatim(plane: ControlPlane) -> None:
    async with webhook(plane):
        status, answer = await ask(
            plane, "POST", "/api/v1/namespaces/default/pods", named("mixed", pod(container(mem=3, memory="3Gi")))
        )
        assert (status, manifests.code_of(answer["message"])) == (403, "mixed-dialects"), answer
        assert "keep one of them, in all containers" in answer["message"]


async def test_plain_nvidia_is_taken_over_if_the_namespace_opts_in(plane: ControlPlane) -> None:
    for name, labels in (("opted", {"kerf.dev/take-over": "nvidia"}), ("not-opted", {})):
        status, _ = await ask(plane, "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        assert status == 201
        await eventually(lambda name=name: _account(plane, name))
    async with webhook(plane):
        taken = (await ask(plane, "POST", "/api/v1/namespaces/opted/pods", named("n", pod(container(nvidia=2)))))[1]
        left = (await ask(plane, "POST", "/api/v1/namespaces/not-opted/pods", named("n", pod(container(nvidia=2)))))[1]
    assert taken["spec"]["containers"][0]["resources"]["limits"] == {
        "kerf.dev/gpu": "2",
        "kerf.dev/slot": "1",
        "kerf.dev/quota-gpu-milli": "2k",
    }
    assert (left["spec"]["schedulerName"], left["spec"]["containers"][0]["resources"]["limits"]) == (
        "default-scheduler",
        {"nvidia.com/gpu": "2"},
    )


async def test_a_profile_holds_for_foreign_dialects_too(plane: ControlPlane) -> None:
    """A pod is translated by one entry of the webhook's configuration and filled in by a later one, which sees what
    the first has made of it. What contradicts a profile is refused by the policy, which comes after both."""
    for name in ("debug", "train"):
        labels = {"kerf.dev/profile": name, "kerf.dev/take-over": "nvidia"}
        status, _ = await ask(plane, "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        assert status == 201
        await eventually(lambda name=name: _account(plane, name))
    share = {"kerf.dev/gpu": "1", "kerf.dev/gpu-memory-percent": "25", "kerf.dev/quota-gpu-milli": "250"}
    async with webhook(plane):
        for name, manifest in (
            ("plain", pod(container(nvidia=1))),
            ("hami", pod(container(nvidia=1), schedulerName="hami-scheduler")),
            ("shared", pod(container(count=1))),
            ("own", pod(container(gpu=1))),
        ):
            status, made = await ask(plane, "POST", "/api/v1/namespaces/debug/pods", named(name, manifest))
            assert status == 201, made
            assert made["spec"]["containers"][0]["resources"]["limits"] == share | {"kerf.dev/slot": "1"}
            note = made["metadata"]["annotations"]["kerf.dev/profile"]
            assert note == "debug: main kerf.dev/gpu-memory-percent=25"
        for namespace, manifest, code in (
            ("train", pod(container(mem=3)), "profile-train"),
            ("train", pod(container(memory="3Gi")), "profile-train"),
            ("debug", pod(container(**{"tencent.com/vcuda-core": "100"}), annotations=HARD), "profile-debug"),
        ):
            status, answer = await ask(plane, "POST", f"/api/v1/namespaces/{namespace}/pods", named("no", manifest))
            assert (status, manifests.code_of(answer["message"])) == (422, code), answer
        status, made = await ask(
            plane, "POST", "/api/v1/namespaces/train/pods", named("whole", pod(container(nvidia=1)))
        )
        assert (status, made["spec"]["containers"][0]["resources"]["limits"]["kerf.dev/gpu"]) == (201, "1")
        assert "kerf.dev/profile" not in made["metadata"].get("annotations", {})


async def _account(plane: ControlPlane, namespace: str) -> bool:
    return (await ask(plane, "GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))[0] == 200


async def test_a_webhook_that_is_down_stops_foreign_gpu_pods_and_nothing_else(plane: ControlPlane) -> None:
    """They do not reach a scheduler that cannot place them. All other pods, also canonical requests, are admitted."""
    async with webhook(plane):
        pass
    status, answer = await ask(plane, "POST", "/api/v1/namespaces/default/pods", named("orphan", pod(container(mem=3))))
    assert (status, "dialects.kerf.dev" in answer["message"]) == (500, True), answer
    assert (await ask(plane, "POST", "/api/v1/namespaces/default/pods", named("plain-too", pod(container()))))[0] == 201
    status, reply = await ask(
        plane, "POST", "/api/v1/namespaces/default/pods", named("canonical-too", pod(container(gpu=1)))
    )
    assert (status, reply["spec"]["schedulerName"]) == (201, "kerf")
