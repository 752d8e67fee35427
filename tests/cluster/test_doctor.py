"""`kerf doctor` and what it reads of a real API server: the webhook's certificates and the nodes' runtimes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.doctor import examine
from cli.doctor.base import Finding, Site
from shared.kube.client import connect
from tests.support import manifests
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


def pem(days: float) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kerf-admission")])
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days, hours=1))
        .sign(key, hashes.SHA256())
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
        for hook in webhook["webhooks"]:
            hook["clientConfig"]["caBundle"] = pem(300)
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
