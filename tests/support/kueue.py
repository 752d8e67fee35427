"""The real Kueue beside a real API server: its CRDs, webhooks and configuration as its module has them.

Kueue makes the certificate of its webhooks itself and writes the CA into their configurations. The API server calls
them by their Service, which is one of type ExternalName here and leads to loopback.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.support import manifests
from tests.support.neighbours import Document, controller_or_skip, documents
from tools.control_plane import ControlPlane, die_with_parent, free_ports

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples/kueue"
NAMESPACE = "kueue-system"
SERVICE = "kueue-webhook-service"
CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
"""Kinds that Kueue's cert rotator expects to have a conversion webhook (pkg/util/cert/cert.go)."""


class Kueue:
    def __init__(self, plane: ControlPlane, state: Path) -> None:
        self.plane, self.state = plane, state
        self.program, source = controller_or_skip("kueue")
        self.source = source / "config/components"
        self.port, self.health_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    def install(self) -> None:
        """What `kubectl apply` of Kueue's release does, but for its Deployment and its rights: it runs as admin."""
        service = {"name": SERVICE, "namespace": NAMESPACE, "port": self.port}
        self._post({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        meta = {"name": "kueue-webhook-server-cert", "namespace": NAMESPACE}
        self._post({"apiVersion": "v1", "kind": "Secret", "metadata": meta})
        spec = {"type": "ExternalName", "externalName": "localhost"}
        meta = {"name": SERVICE, "namespace": NAMESPACE}
        self._post({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
        for file in sorted((self.source / "crd/bases").glob("*.yaml")):
            (crd,) = documents(file)
            if crd["spec"]["names"]["plural"] in CONVERTED:
                client = {"service": service | {"path": "/convert"}}
                webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
                crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            self._post(crd)
        for document in documents(self.source / "webhook/manifests.yaml"):
            document["metadata"] = {"name": f"kueue-{document['metadata']['name']}"}
            for hook in document["webhooks"]:
                hook["clientConfig"]["service"] |= service
                if "kueue-x-k8s-io" not in hook["clientConfig"]["service"]["path"]:  # as its kustomization has it
                    excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
                    values = ["kube-system", NAMESPACE]
                    hook["namespaceSelector"] = {"matchExpressions": [excluded | {"values": values}]}
            self._post(document)

    def start(self) -> None:
        """With the configuration of docs/examples/kueue, and ports of its own."""
        (configuration,) = documents(EXAMPLES / "configuration.yaml")
        configuration |= {
            "namespace": NAMESPACE,
            "leaderElection": {"leaderElect": False},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(self.state / "certificates")},
        }
        (self.state / "certificates").mkdir()
        file = self.state / "configuration.yaml"
        file.write_text(yaml.safe_dump(configuration))
        with (self.state / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program), f"--config={file}", "--feature-gates=VisibilityOnDemand=false"],
                env=os.environ | {"KUBECONFIG": str(self.plane.kubeconfig())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.state,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (the child only calls prctl)
            )

    def mount(self) -> bool:
        """As a kubelet does with a Secret's volume: the certificate that Kueue has made becomes files. False where it
        has made none yet."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert"
        data = json.loads(self.plane.request("GET", path)[1]).get("data", {})
        for name, value in data.items():
            (self.state / "certificates" / name).write_bytes(base64.b64decode(value))
        return bool(data)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def check(self) -> None:
        """Fails with the end of its log where it does not run any more."""
        if self._process is not None and self._process.poll() is not None:
            end = (self.state / "log").read_text(errors="replace")[-3000:]
            raise AssertionError(f"Kueue ended with status {self._process.returncode}: {end}")

    def create(self, document: Document, *, query: str = "") -> tuple[int, bytes]:
        """One object; the path is that of its kind's collection."""
        path = manifests.path_of(document | {"metadata": {**document["metadata"], "name": ""}})
        return self.plane.request("POST", path.rstrip("/") + query, document)

    def _post(self, document: Document) -> None:
        status, answer = self.create(document)
        assert status in (201, 409), answer.decode()


@contextlib.contextmanager
def kueue(plane: ControlPlane, state: Path) -> Iterator[Kueue]:
    made = Kueue(plane, state)
    made.install()
    made.start()
    try:
        yield made
    finally:
        made.stop()
