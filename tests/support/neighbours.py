"""Controllers of batch systems, as their projects build them, beside Kerf on a real API server.

A controller runs as a process with an administrator's account, its webhooks registered under loopback addresses. Its
CustomResourceDefinitions, webhooks and example manifests are read from the source of its pinned module, unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.test_admission_webhook import webhook
from tests.support import manifests
from tests.support.waiting import eventually, within
from tests.support.whole import Whole, whole
from tools import binaries, pki
from tools.control_plane import ControlPlane, die_with_parent

Document = dict[str, Any]
CLUSTER_WIDE = ("ClusterTrainingRuntime", "Queue", *manifests.CLUSTER_WIDE)
LIMIT_S = 90.0
"""Of what controllers bring about, one step after the other, on a busy machine."""
_NUMBERS = itertools.count(1)
GPUS_OF_NVIDIA = {"kerf.dev/take-over": "nvidia"}
"""The label of a namespace whose pods' `nvidia.com/gpu` are Kerf's."""


def controller_or_skip(name: str) -> tuple[Path, Path]:
    """The controller `name` of tools/program.sh and the folder of its module's source. Where it is not built the test
    is skipped; with REQUIRE_NEIGHBOURS=1 it is built now, and the test fails if that fails."""
    required = os.environ.get("REQUIRE_NEIGHBOURS") == "1"
    try:
        return binaries.program(name, build=required), binaries.source(name)
    except binaries.NoBinaries:
        if required:
            raise
        pytest.skip(f"the controller {name} is not built, or its source is not there; make neighbours builds it")


def documents(file: Path) -> list[Document]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


class Neighbour:
    """One controller beside a control plane. `source` is the folder of its module's source."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name
        self.program, self.source = controller_or_skip(name)
        self.state = plane.state / name
        self.state.mkdir()
        self.port, self.health_port = _ports(2)
        """Of its webhooks, and of its health checks."""
        self._process: subprocess.Popen[bytes] | None = None
        self._registered: list[str] = []
        self.beside: tuple[Neighbour, ...] = ()
        """What belongs to it, such as a webhook of its own process."""

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def certificates(self) -> Path:
        """A folder with tls.crt and tls.key, of the control plane's authority, and ca.crt."""
        folder = self.state / "certificates"
        if not folder.exists():
            folder.mkdir()
            certificate, key = pki.issue(
                self.plane.pki, f"webhook-{self.name}", f"/CN={self.name}", names=pki.SERVER_NAMES, server=True
            )
            for file, to in ((certificate, "tls.crt"), (key, "tls.key"), (self.plane.pki / "ca.crt", "ca.crt")):
                (folder / to).write_bytes(file.read_bytes())
        return folder

    def configured(self, document: Document) -> Path:
        """Writes its configuration file."""
        file = self.state / "configuration.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    def install(self, *files: Path) -> None:
        """Creates what these files list, CustomResourceDefinitions among others, and waits until all of these are
        served."""
        found = [document for file in files for document in documents(file)]
        for document in found:
            status, answer = self.plane.request("POST", collection_of(document), document)
            assert status in (201, 409), answer.decode()
        deadline = time.monotonic() + LIMIT_S
        for version, plural in (kind for document in found for kind in _kinds(document)):
            while not self._is_served(version, plural):
                assert time.monotonic() < deadline, f"{plural} of {version} are not served after {LIMIT_S:.0f} s"
                time.sleep(0.02)

    def _is_served(self, version: str, plural: str) -> bool:
        """By the kind itself and by discovery, where controllers look, which learns of it later."""
        status, answer = self.plane.request("GET", f"/apis/{version}")
        if status != 200 or all(one["name"] != plural for one in json.loads(answer)["resources"]):
            return False
        return self.plane.request("GET", f"/apis/{version}/{plural}")[0] == 200

    def register(self, file: Path, *, port: int | None = None) -> None:
        """Its webhooks, from its project's own manifest, under the addresses where they listen here."""
        authority = base64.b64encode((self.plane.pki / "ca.crt").read_bytes()).decode()
        for document in documents(file):
            if "webhooks" not in document:
                continue
            name = document["metadata"]["name"]
            document["metadata"] = {"name": name if name.startswith(self.name) else f"{self.name}-{name}"}
            for hook in document["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {
                    "url": f"https://127.0.0.1:{port or self.port}{path}",
                    "caBundle": authority,
                }
            status, answer = self.plane.request("POST", collection_of(document), document)
            assert status == 201, answer.decode()
            self._registered.append(f"{collection_of(document)}/{document['metadata']['name']}")

    def unregister(self) -> None:
        """Its webhooks go with it, or the API server would refuse what they were to see."""
        for path in self._registered:
            status, answer = self.plane.request("DELETE", path)
            assert status == 200, answer.decode()

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts it, after the end of one that runs already."""
        self.stop()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program), *arguments],
                env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig()), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.state,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (the child only calls prctl)
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def problem(self) -> str:
        """The ends of the logs of those that do not run any more."""
        own = ""
        if self._process is not None and self._process.poll() is not None:
            own = f"{self.name} ended with status {self._process.returncode}: {self.log_end()}\n"
        return own + "".join(one.problem() for one in self.beside)

    def log_end(self) -> str:
        own = f"{self.name}: {self.log.read_text(errors='replace')[-3000:]}\n"
        return own + "".join(one.log_end() for one in self.beside)


def _ports(count: int) -> list[int]:
    """Free ports below those that Linux gives to outgoing connections by default: a controller listens seconds later,
    and until then no connection may take them."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one, contextlib.suppress(OSError):  # in use: another one is drawn
            one.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            found.append(one.getsockname()[1])
    return found


def _kinds(document: Document) -> list[tuple[str, str]]:
    """(group and version, plural) of all that a CustomResourceDefinition serves."""
    if document["kind"] != "CustomResourceDefinition":
        return []
    spec = document["spec"]
    served = [version["name"] for version in spec["versions"] if version["served"]]
    return [(f"{spec['group']}/{version}", spec["names"]["plural"]) for version in served]


@contextlib.contextmanager
def neighbour(plane: ControlPlane, name: str) -> Iterator[Neighbour]:
    made = Neighbour(plane, name)
    try:
        yield made
    finally:
        made.stop()
        made.unregister()


@contextlib.contextmanager
def lws_controller(plane: ControlPlane, *, scheduler: str = "") -> Iterator[Neighbour]:
    """LeaderWorkerSet's. `scheduler`: for which it creates PodGroups."""
    with neighbour(plane, "lws") as made:
        made.install(*sorted((made.source / "config/crd/bases").glob("*.yaml")))
        made.register(made.source / "config/webhook/manifests.yaml")
        configuration = made.configured({
            "apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration",
            "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": made.port, "certDir": str(made.certificates)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{made.health_port}"},
            "metrics": {"bindAddress": "0"},
            **({"gangSchedulingManagement": {"schedulerProvider": scheduler}} if scheduler else {}),
        })  # fmt: skip
        made.start(f"--config={configuration}")
        yield made


@contextlib.contextmanager
def jobset_controller(plane: ControlPlane) -> Iterator[Neighbour]:
    """JobSet's, which others build on."""
    with neighbour(plane, "jobset") as made:
        components = made.source / "config/components"
        made.install(components / "crd/bases/jobset.x-k8s.io_jobsets.yaml")
        made.register(components / "webhook/manifests.yaml")
        configuration = made.configured({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
            "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": made.port, "certDir": str(made.certificates)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{made.health_port}"},
            "metrics": {"bindAddress": "0"},
        })  # fmt: skip
        made.start(f"--config={configuration}")
        yield made


def collection_of(document: Document, namespace: str = "") -> str:
    """The path at which a document is created."""
    version = document["apiVersion"]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    inside = f"/namespaces/{namespace}" if namespace and document["kind"] not in CLUSTER_WIDE else ""
    return f"{root}{inside}/{manifests.plural(document['kind'])}"


async def serves(world: Whole, document: Document, *controllers: Neighbour) -> None:
    """Waits until the API server accepts such a document, which needs its kind and its controller's webhooks."""
    path, answer = f"{collection_of(document, world.namespace)}?dryRun=All", b""

    async def accepted() -> bool:
        nonlocal answer
        assert not (problem := "".join(one.problem() for one in controllers)), problem
        status, answer = await asyncio.to_thread(world.plane.request, "POST", path, document)
        return status == 201

    found = await within(accepted, LIMIT_S, every_s=0.1)
    assert found, f"{document['kind']}: {answer.decode()}\n{await story(world, *controllers)}"


@contextlib.asynccontextmanager
async def applied(world: Whole, found: Sequence[Document], *controllers: Neighbour) -> AsyncIterator[None]:
    """Creates the documents in the world's namespace, as `kubectl create -f` would, and deletes them in the end: pods
    that still waited would be placed on the nodes of the next test."""
    made = []
    try:
        for document in found:
            await serves(world, document, *controllers)
            path = collection_of(document, world.namespace)
            answer = await world.ask("POST", path, document)
            made.append(f"{path}/{answer['metadata']['name']}")
        yield
    finally:
        for path in made:
            await asyncio.to_thread(world.plane.request, "DELETE", path, {"propagationPolicy": "Background"})
        await eventually(lambda: _no_pod_left(world), within_s=LIMIT_S, every_s=0.1, what="the pods are gone")


async def _no_pod_left(world: Whole) -> bool:
    """Ends those that are left at once, for no kubelet is there to end them."""
    found = await pods(world)
    for pod in found:
        path = f"/api/v1/namespaces/{world.namespace}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0"
        await asyncio.to_thread(world.plane.request, "DELETE", path)
    return not found


async def pods(world: Whole) -> list[Document]:
    found: list[Document] = (await world.ask("GET", f"/api/v1/namespaces/{world.namespace}/pods"))["items"]
    return found


async def all_bound(world: Whole, count: int, *controllers: Neighbour, others: int = 0) -> list[Document]:
    """Waits until `count` of the namespace's pods are Kerf's, each with a node, and `others` are another scheduler's;
    returns Kerf's."""

    async def there() -> list[Document] | None:
        assert not (problem := "".join(one.problem() for one in controllers)), problem
        ours, theirs = await _by_scheduler(world)
        bound = [pod for pod in ours if pod["spec"].get("nodeName")]
        return bound if len(ours) == len(bound) == count and len(theirs) == others else None

    found: list[Document] | None = await within(there, LIMIT_S, every_s=0.05)
    assert found, f"not {count} pods bound: {await story(world, *controllers)}"
    return found


async def bound_by(
    world: Whole, count: int, group: Callable[[Document], str], *, waiting: int, others: int = 0
) -> Counter[str]:
    """Waits until there are `count` pods of Kerf's, of which `waiting` have its Event that their gang does not fit, and
    `others` of another scheduler's; returns how many of the rest are bound, by their `group`."""

    async def settled() -> list[Document] | None:
        ours, theirs = await _by_scheduler(world)
        open_ones = [pod for pod in ours if not pod["spec"].get("nodeName")]
        if len(ours) != count or len(open_ones) != waiting or len(theirs) != others:
            return None
        told = [await has_event(world, pod["metadata"]["name"]) for pod in open_ones]
        return ours if all(told) else None

    found: list[Document] | None = await within(settled, LIMIT_S, every_s=0.1)
    assert found, f"not {waiting} of {count} pods wait for room: {await story(world)}"
    return Counter(group(pod) for pod in found if pod["spec"].get("nodeName"))


async def _by_scheduler(world: Whole) -> tuple[list[Document], list[Document]]:
    """Kerf's pods, and those of other schedulers."""
    found = await pods(world)
    ours = [pod for pod in found if pod["spec"]["schedulerName"] == "kerf"]
    return ours, [pod for pod in found if pod["spec"]["schedulerName"] != "kerf"]


async def story(world: Whole, *controllers: Neighbour) -> str:
    """The pods, what Events say, and the ends of the controllers' logs: why a test failed."""
    events = (await world.ask("GET", f"/api/v1/namespaces/{world.namespace}/events"))["items"]
    lines = [f"{pod['metadata']['name']} on {pod['spec'].get('nodeName')}" for pod in await pods(world)]
    lines += [f"{e['involvedObject']['name']}: {e['reason']}: {e['message']}" for e in events]
    lines += [one.log_end() for one in controllers]
    return "\n".join(lines)


async def has_event(world: Whole, pod: str) -> bool:
    """Kerf says of the pod that there is no room for all of its gang."""
    listed = await world.ask(
        "GET", f"/api/v1/namespaces/{world.namespace}/events?fieldSelector=involvedObject.name={pod}"
    )
    return any(e["reason"] == "FailedScheduling" and "gang" in e["message"] for e in listed["items"])


async def label_nodes(world: Whole, labels: Callable[[int], Mapping[str, str]]) -> None:
    """By the node's number in the world."""
    for number, name in enumerate(world.nodes):
        await world.ask(
            "PATCH",
            f"/api/v1/nodes/{name}",
            {"metadata": {"labels": labels(number)}},
            content_type="application/merge-patch+json",
        )


async def gpus_for_each_container(world: Whole, count: int = 1) -> None:
    """By a LimitRange of the namespace each container gets `count` GPUs, so that a manifest which names none stays as
    it is. In Kerf's word: what admission has rewritten, the LimitRange would add again."""
    amount = {"kerf.dev/gpu": str(count)}
    limits = [{"type": "Container", "default": amount, "defaultRequest": amount}]
    await world.ask("POST", f"/api/v1/namespaces/{world.namespace}/limitranges", {
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "gpus"}, "spec": {"limits": limits},
    })  # fmt: skip


async def runs(world: Whole, pod: Document) -> None:
    """The kubelet's word that a pod runs and is ready, for no kubelet is there to say it."""
    ready = [{"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "PodScheduled", "Ready")]
    states = [
        {
            "name": container["name"], "ready": True, "started": True, "restartCount": 0,
            "image": container["image"], "imageID": "", "state": {"running": {}},
        }
        for container in pod["spec"]["containers"]
    ]  # fmt: skip
    await world.ask(
        "PATCH",
        f"/api/v1/namespaces/{world.namespace}/pods/{pod['metadata']['name']}/status",
        {"status": {"phase": "Running", "conditions": ready, "containerStatuses": states, "podIP": "10.0.0.1"}},
        content_type="application/merge-patch+json",
    )


@contextlib.asynccontextmanager
async def reviewed_world(
    plane: ControlPlane, name: str, *, nodes: int, gpus: int, labels: Mapping[str, str] = GPUS_OF_NVIDIA
) -> AsyncIterator[Whole]:
    """Kerf over so many nodes, with its webhook. `labels`: of the world's own namespace, which begins with `name`."""
    namespace = f"{name}-{next(_NUMBERS)}"
    async with webhook(plane), whole(plane, namespace, nodes=nodes, gpus=gpus, labels=labels) as world:
        yield world
