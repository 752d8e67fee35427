"""`kerf doctor` and what it reads of a real API server: certificates, runtimes of nodes, other systems' GPUs."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.doctor import examine
from cli.doctor.base import Finding, Site
from cli.doctor.neighbours import Neighbours
from shared.kube.client import connect
from tests.support import manifests
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


KEY = ec.generate_private_key(ec.SECP256R1())


def pem(days: float) -> str:
    """A certificate of ninety days that is valid for so many more; one of more days is new. Each is signed by any of
    them, for all have one key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kerf-admission")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=max(1, 90 - days)))
        .not_valid_after(now + timedelta(days=days, hours=1))
        .sign(KEY, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


async def test_doctor_reads_certificates_and_runtimes_of_a_cluster(control_plane: ControlPlane) -> None:
    site = Site(url="nats://127.0.0.1:1", user="", bus_error="no NATS")
    site.kube = await connect(str(control_plane.kubeconfig()))

    async def said(check: str) -> list[tuple[str, str]]:
        found: list[Finding] = await examine(site)
        return [(finding.status, finding.text) for finding in found if finding.check == check]

    try:
        assert await said("certificates") == [
            ("warn", "there is no webhook kerf-dialects: pods in other systems' words are not read")
        ]
        assert await said("cdi") == [("ok", "runtime and kubelet have CDI on every node (0)")]
        (webhook,) = (m for m in manifests.load("24-") if m["kind"] == "MutatingWebhookConfiguration")
        authority = pem(300)
        for hook in webhook["webhooks"]:
            hook["clientConfig"]["caBundle"] = authority
        control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kerf-system"}})
        manifests.apply(control_plane, webhook)
        assert [status for status, _ in await said("certificates")] == ["ok", "fail"], "the Secret is missing"
        secret = {"metadata": {"name": "kerf-admission"}, "data": {"tls.crt": pem(10), "tls.key": ""}}
        assert control_plane.request("POST", "/api/v1/namespaces/kerf-system/secrets", secret)[0] == 201
        told = await said("certificates")
        assert [status for status, _ in told] == ["ok", "warn"]
        assert "the webhook's CA is valid for 300 more days" in told[0][1]
        assert "the webhook's certificate is valid for 10 more days" in told[1][1]
        info = {"containerRuntimeVersion": "containerd://1.6.20", "kubeletVersion": "v1.34.0"}
        node = {"metadata": {"name": "old", "labels": {"kerf.dev/managed": "true"}}, "status": {"nodeInfo": info}}
        assert control_plane.request("POST", "/api/v1/nodes", node)[0] == 201
        ((status, _),) = await said("cdi")
        assert status == "fail"
    finally:
        control_plane.request("DELETE", "/api/v1/nodes/old")
        control_plane.request(
            "DELETE", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kerf-dialects"
        )
        control_plane.request("DELETE", "/api/v1/namespaces/kerf-system/secrets/kerf-admission")
        await site.kube.close()


async def test_doctor_finds_other_systems_that_offer_gpus_of_enrolled_nodes(control_plane: ControlPlane) -> None:
    site = Site(url="nats://127.0.0.1:1", user="", bus_error="no NATS")
    site.kube = await connect(str(control_plane.kubeconfig()))
    present = {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}
    own = {"kerf.dev/managed": "true", "kerf.dev/enrolled": "true"}
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    made: list[str] = []

    def create(path: str, name: str, *, labels: dict[str, str] | None = None, **rest: object) -> None:
        body = {"metadata": {"name": name, "labels": labels or {}}, **rest}
        status, answer = control_plane.request("POST", path, body)
        assert status == 201, answer
        made.append(f"{path}/{name}")

    def publish(driver: str, node: str) -> None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
        create(slices, f"{node}-{driver}", spec=spec)

    async def said() -> list[tuple[str, str]]:
        found = await Neighbours().run(site)
        return [(finding.status, finding.text) for finding in found]

    try:
        assert await said() == [("ok", "no other system offers GPUs of enrolled nodes")]
        create("/api/v1/nodes", "doctor-own", labels=own | present)
        create("/api/v1/nodes", "doctor-free", labels=present)
        publish("gpu.kerf.dev", "doctor-own")
        publish("compute-domain.nvidia.com", "doctor-own")
        publish("gpu.nvidia.com", "doctor-free")
        assert await said() == [
            ("ok", "no other system offers GPUs of enrolled nodes"),
            ("ok", "nodes with GPUs that are not enrolled: 1 (doctor-free)"),
        ]
        publish("gpu.nvidia.com", "doctor-own")
        status = {"status": {"allocatable": {"nvidia.com/gpu": "8"}, "capacity": {"nvidia.com/gpu": "8"}}}
        code, answer = control_plane.request(
            "PATCH", "/api/v1/nodes/doctor-own/status", status, content_type="application/merge-patch+json"
        )
        assert (code, json.loads(answer)["status"]["allocatable"]["nvidia.com/gpu"]) == (200, "8")
        plugin, driver = [text for status, text in await said() if status == "fail"]
        assert plugin == "another device plugin offers GPUs of enrolled nodes as nvidia.com/gpu: doctor-own"
        assert driver.startswith("NVIDIA's DRA driver (gpu.nvidia.com) offers GPUs of enrolled nodes")
        assert driver.endswith(": doctor-own"), "the other node is not enrolled"
    finally:
        for path in made:
            control_plane.request("DELETE", path)
        await site.kube.close()
