"""The manifests under k8s/, as objects, and putting them into a real API server."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import yaml

from tools.control_plane import ControlPlane

FOLDER = Path(__file__).resolve().parents[2] / "k8s"
FILES = tuple(sorted(FOLDER.glob("*.yaml")))
SCHEDULERS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "kerf-schedulers", "namespace": "kerf-system"},
    # With the newline that a list in YAML often ends with.
    "data": {"accounts": "system:kube-scheduler\n"},
}
CLUSTER_WIDE = ("Namespace", "ClusterRole", "ClusterRoleBinding")


def load(*names: str) -> list[dict[str, Any]]:
    """The documents of these files, by the beginnings of their names; of all without any."""
    chosen = [f for f in FILES if not names or any(f.name.startswith(name) for name in names)]
    return [document for file in chosen for document in yaml.safe_load_all(file.read_text()) if document]


def removal() -> list[str]:
    """The commands of docs/install.md that remove them."""
    page = (FOLDER.parent / "docs" / "install.md").read_text()
    part = page[page.index("\n## Without Helm\n") : page.index("\n## Values\n")]
    return part.split("```")[1].strip().splitlines()


def plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith("y"):
        return f"{lower[:-1]}ies"
    return f"{lower}es" if lower.endswith("s") else f"{lower}s"


def path_of(manifest: dict[str, Any]) -> str:
    version, namespace = manifest["apiVersion"], manifest["metadata"].get("namespace")
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{inside}/{plural(manifest['kind'])}/{manifest['metadata']['name']}"


def apply(plane: ControlPlane, manifest: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Server-side apply with strict field validation: a misspelt field fails."""
    query = "?fieldManager=kerf-tests&fieldValidation=Strict&force=true"
    status, body = plane.request(
        "PATCH", path_of(manifest) + query, manifest, content_type="application/apply-patch+yaml"
    )
    return status, json.loads(body)


def apply_all(plane: ControlPlane, *names: str) -> None:
    for manifest in load(*names):
        _applied(plane, manifest)
        if (manifest["kind"], manifest["metadata"]["name"]) == ("ValidatingAdmissionPolicyBinding", "kerf-binding"):
            # The list of schedulers is the operator's and the user's to write, and what warns at first is to refuse.
            _applied(plane, SCHEDULERS)
            _applied(plane, manifest | {"spec": manifest["spec"] | {"validationActions": ["Deny"]}})


def _applied(plane: ControlPlane, manifest: dict[str, Any]) -> None:
    status, answer = apply(plane, manifest)
    assert status in (200, 201), f"{manifest['kind']} {manifest['metadata']['name']}: {answer.get('message')}"


def wait_for_policies(plane: ControlPlane, within_s: float = 30.0) -> None:
    """Waits until the API server enforces each policy, which takes a second or two after it has accepted them; probes
    it with dry runs."""
    resources = {"limits": {"kerf.dev/gpu": "1"}}
    pod: dict[str, Any] = {
        "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "c", "image": "example", "resources": resources}]},
    }
    binding = {"metadata": {"name": "probe"}, "target": {"kind": "Node", "name": "n"}}
    spoofed = pod | {"metadata": {"name": "probe", "annotations": {"kerf.dev/grant": "{}"}}}
    gang = pod | {"metadata": {"name": "probe", "annotations": {"kerf.dev/gang": "alone"}}}
    deadline, base = time.monotonic() + within_s, "/api/v1/namespaces/default/pods"

    def said(path: str, body: dict[str, Any]) -> str:
        return plane.request("POST", f"{path}?dryRun=All", body)[1].decode()

    while True:
        mutated = '"schedulerName":"kerf"' in said(base, pod)
        if mutated and all(
            code in said(*asked)
            for code, asked in {
                "spoofed-grant": (base, spoofed),
                "bad-gang": (base, gang),
                "foreign-binding": (f"{base}/probe/binding", binding),
            }.items()
        ):
            return
        assert time.monotonic() < deadline, f"the policies are not in force after {within_s:.0f} s"
        time.sleep(0.02)


def code_of(message: str) -> str:
    """The code in brackets at the end of one of our refusals; empty if there is none."""
    found = re.search(r"\[([a-z-]+)\]", message)
    return found.group(1) if found else ""
