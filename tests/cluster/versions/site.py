"""Kerf's chart on an API server of one minor version of Kubernetes: installed by helm, which asks that server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.admission.service import Admission, Config
from shared.kube.access import load_access
from shared.kube.client import transport_for
from shared.kube.transport import Transport
from shared.service import running
from tests.support import manifests
from tests.support.cluster import binaries_or_skip, program_or_skip
from tests.support.waiting import eventually
from tools import pki
from tools.binaries import KUBERNETES_VERSION, MINOR_VERSIONS
from tools.control_plane import ControlPlane

MAIN = ".".join(KUBERNETES_VERSION.removeprefix("v").split(".")[:2])
ALL = tuple(sorted({*MINOR_VERSIONS, MAIN}, key=lambda minor: int(minor.split(".")[1])))
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kerf-dialects"

POD_GROUP_FLAGS = {
    35: ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha1=true"],
    36: ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"],
    37: [
        "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true,CompositePodGroup=true",
        "--runtime-config=scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true",
    ],
}
"""What turns Kubernetes' own gangs on: off by default in each of these versions (`pkg/features/kube_features.go`)."""


def chosen() -> tuple[str, ...]:
    """The oldest and the newest; all of them with KERF_KUBERNETES=all, or those that it lists."""
    asked = os.environ.get("KERF_KUBERNETES", "")
    return ALL if asked == "all" else tuple(asked.split(",")) if asked else (ALL[0], ALL[-1])


class Site:
    """One API server with the chart installed. No controllers run, nor nodes."""

    def __init__(self, minor: str, plane: ControlPlane) -> None:
        self.minor, self.number, self.plane = minor, int(minor.split(".")[1]), plane
        self.notes = ""
        """What helm says at the end of the installation."""

    def call(self, method: str, path: str, body: Any = None, *, expect: int = 200, kind: str = "") -> Any:
        status, answer = self.plane.request(method, path, body, content_type=kind or "application/json")
        assert status == expect, (status, answer.decode())
        return json.loads(answer)

    def exists(self, path: str) -> bool:
        return self.plane.request("GET", path)[0] == 200

    def serves(self, group_version: str, plural: str) -> bool:
        status, answer = self.plane.request("GET", f"/apis/{group_version}")
        return status == 200 and plural in [one["name"] for one in json.loads(answer)["resources"]]

    @property
    def has_policies(self) -> bool:
        return self.serves("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies")


@contextlib.contextmanager
def site(minor: str) -> Iterator[Site]:
    binaries = binaries_or_skip(kubernetes=minor)
    flags = POD_GROUP_FLAGS.get(int(minor.split(".")[1]), ())
    with tempfile.TemporaryDirectory(prefix=f"kerf-kube-{minor}-") as state:
        plane = ControlPlane(Path(state), binaries=binaries, apiserver_flags=flags).start()
        try:
            made = Site(minor, plane)
            made.notes = helm(made, "install")
            # The list of schedulers is the operator's to make, and what warns at first is to refuse here.
            manifests.apply(plane, manifests.SCHEDULERS)
            yield made
        finally:
            plane.stop()


def helm(made: Site, verb: str, *options: str) -> str:
    """Installs or upgrades; returns helm's notes. The chart's defaults decide by what the API server serves."""
    command = [program_or_skip("helm"), verb, "kerf", manifests.FOLDER / "chart", "--namespace=kerf-system"]
    common = ["--create-namespace", "--no-hooks", "--set=bindingPolicy.mode=Deny", *options]
    environment = os.environ | {"KUBECONFIG": str(made.plane.kubeconfig()), "HELM_CACHE_HOME": str(made.plane.state)}
    done = subprocess.run([*command, *common], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.asynccontextmanager
async def admission(made: Site) -> AsyncIterator[None]:
    """Kerf's webhook behind the configuration that was installed; no Service leads to it here, so its URL does."""
    plane = made.plane
    if not (plane.pki / "webhook.crt").exists():
        pki.issue(plane.pki, "webhook", "/CN=kerf-admission", names=pki.SERVER_NAMES, server=True)
    services: list[Admission] = []

    class Known(Admission):
        async def start(self, ctx: Any) -> None:
            await super().start(ctx)
            services.append(self)

    files = {"certificate_file": str(plane.pki / "webhook.crt"), "key_file": str(plane.pki / "webhook.key")}
    installed = made.call("GET", WEBHOOKS)["webhooks"]
    async with running(Known, Config(host="127.0.0.1", port=0, **files)):
        await asyncio.to_thread(_lead, made, services[0].port)
        try:
            await asyncio.to_thread(manifests.wait_for_policies, plane)
            await eventually(lambda: asyncio.to_thread(_translates, made), what="the webhook translates a dialect")
            yield
        finally:
            await asyncio.to_thread(_replace, made, installed)


@contextlib.asynccontextmanager
async def transport(made: Site, account: str = "") -> AsyncIterator[Transport]:
    """Requests as administrator, or as one of Kerf's accounts."""
    kubeconfig = made.plane.service_account("kerf-system", account) if account else made.plane.kubeconfig()
    client = transport_for(await load_access(str(kubeconfig)))
    try:
        yield client
    finally:
        await client.close()


def _lead(made: Site, port: int) -> None:
    webhooks = made.call("GET", WEBHOOKS)["webhooks"]
    authority = base64.b64encode((made.plane.pki / "ca.crt").read_bytes()).decode()
    for hook in webhooks:
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    _replace(made, webhooks)


def _replace(made: Site, webhooks: list[Any]) -> None:
    made.call("PUT", WEBHOOKS, made.call("GET", WEBHOOKS) | {"webhooks": webhooks})


def _translates(made: Site) -> bool:
    asked = {"name": "c", "image": "example", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [asked]}}
    status, answer = made.plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)
    return status == 201 and json.loads(answer)["spec"]["schedulerName"] == "kerf"


def skip_below(made: Site, number: int, what: str) -> None:
    if made.number < number:
        pytest.skip(f"Kubernetes {made.minor} has no {what}")
