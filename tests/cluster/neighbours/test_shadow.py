"""`kerf shadow` beside HAMi on a real API server, by an account that may only read."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadow.objects import PodGone, PodSeen
from shadow.recording import read
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.command import Command
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
WITHIN_S = 60.0
READS = ("get", "list", "watch")
ACCOUNT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "shadow-account.yaml"
USER = "system:serviceaccount:default:kerf-shadow"
GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
REGISTER = f"{GPU},10,16384,100,NVIDIA-Tesla T4,0,true,0,hami-core:"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane that writes down every request that it is sent, with the account of docs/shadow.md."""
    binaries = binaries_or_skip("etcd", "kube-apiserver")
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        folder = Path(state)
        (folder / "audit.json").write_text(json.dumps(AUDIT))
        flags = (f"--audit-policy-file={folder}/audit.json", f"--audit-log-path={folder}/audit.log")
        made = ControlPlane(folder, binaries=binaries, apiserver_flags=flags).start()
        try:
            for manifest in yaml.safe_load_all(ACCOUNT.read_text()):
                status, answer = manifests.apply(made, manifest)
                assert status in (200, 201), answer
            yield made
        finally:
            made.stop()


def ask(plane: ControlPlane, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
    status, answer = plane.request(method, path, body, content_type=kind)
    assert status in (200, 201), answer
    return json.loads(answer)


def prepare(plane: ControlPlane) -> None:
    """A node as HAMi's device plugin describes it, and a namespace."""
    ask(plane, "POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "10"}
    node = {
        "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": REGISTER}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    ask(plane, "POST", "/api/v1/nodes", node)
    # New nodes get a not-ready taint, and the controller that removes it does not run here.
    ask(plane, "PATCH", "/api/v1/nodes/n1", {"spec": {"taints": []}}, "application/merge-patch+json")


def create(plane: ControlPlane, name: str, mib: int) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}
    secret = [{"name": "TOKEN", "value": "not-to-be-recorded"}]
    containers = [{"name": "main", "image": "example", "resources": {"limits": limits}, "env": secret}]
    spec = {"schedulerName": "hami-scheduler", "containers": containers}
    ask(plane, "POST", "/api/v1/namespaces/team/pods", {"metadata": {"name": name}, "spec": spec})


def give(plane: ControlPlane, name: str, mib: int) -> None:
    """As HAMi's scheduler does: first the annotations, then the Binding."""
    text = f"{GPU},NVIDIA,{mib},0:;"
    notes = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/vgpu-devices-to-allocate": text,
    }
    path = f"/api/v1/namespaces/team/pods/{name}"
    ask(plane, "PATCH", path, {"metadata": {"annotations": notes}}, "application/merge-patch+json")
    ask(plane, "POST", f"{path}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}})


async def test_a_live_cluster_is_watched_compared_and_not_touched(plane: ControlPlane, tmp_path: Path) -> None:
    prepare(plane)
    create(plane, "before", 4000)
    give(plane, "before", 4000)
    kubeconfig, file = plane.service_account("default", "kerf-shadow"), tmp_path / "seen.jsonl"
    command = await Command.start("shadow", "--kubeconfig", str(kubeconfig), "--record", str(file), "--json")

    def seen(name: str, node: str) -> bool:
        facts = read(file) if file.exists() and file.stat().st_size else []
        return any(
            isinstance(fact, PodSeen) and fact.pod.metadata.name == name and fact.pod.spec.node_name == node
            for fact in facts
        )

    async def until(name: str, node: str) -> None:
        await eventually(lambda: seen(name, node), within_s=WITHIN_S, what=f"{name} on {node or 'no node'} recorded")

    await until("before", "n1")
    for name, mib in (("fits", 8000), ("twice", 8000)):
        create(plane, name, mib)
        await until(name, "")
        give(plane, name, mib)
        await until(name, "n1")
    create(plane, "waits", 16384)
    await until("waits", "")
    ask(plane, "DELETE", "/api/v1/namespaces/team/pods/fits?gracePeriodSeconds=0")
    await eventually(
        lambda: any(isinstance(fact, PodGone) for fact in read(file)), within_s=WITHIN_S, what="the deletion recorded"
    )
    command.process.send_signal(signal.SIGINT)
    done = await command.done(within_s=WITHIN_S)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["peers"], said["nodes"], said["gpus"]) == (["hami"], 1, 1)
    assert (said["grants_read"], said["grants_wrong"]) == (3, 1)
    assert "20000 of 16384 MiB are given away, to team/before" in said["wrong"][0]
    compared = said["comparison"]
    assert (compared["pods"], compared["ran_before"], compared["there"]["pods_waiting"]) == (4, 1, 1)
    assert compared["kerf"]["pods_started"] == 3, "twice fits once the deleted pod has left"
    assert "not-to-be-recorded" not in file.read_text()

    replayed = await (await Command.start("shadow", "--replay", str(file), "--json")).done()
    assert json.loads(replayed.out) == said

    verbs = {
        entry["verb"]
        for line in (plane.state / "audit.log").read_text().splitlines()
        if (entry := json.loads(line))["user"]["username"] == USER
    }
    assert verbs
    assert verbs <= set(READS)


async def test_an_account_without_rights_is_told_which_it_needs(plane: ControlPlane) -> None:
    kubeconfig = plane.service_account("default", "nobody")
    done = await (await Command.start("shadow", "--kubeconfig", str(kubeconfig), "--for", "30s")).done()
    assert done.code == 1
    assert "may not be read" in done.err
    assert "get, list and watch pods and nodes" in done.err


async def test_of_one_namespace_only_its_pods_are_seen(plane: ControlPlane, tmp_path: Path) -> None:
    ask(plane, "POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
    containers = [{"name": "main", "image": "example", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    for namespace in ("other", "default"):
        document = {"metadata": {"name": f"of-{namespace}"}, "spec": {"containers": containers}}
        ask(plane, "POST", f"/api/v1/namespaces/{namespace}/pods", document)
    file = tmp_path / "seen.jsonl"
    kubeconfig = plane.service_account("default", "kerf-shadow")
    arguments = ("--kubeconfig", str(kubeconfig), "-n", "other", "--for", "1s", "--record", str(file), "--json")
    done = await (await Command.start("shadow", *arguments)).done(within_s=WITHIN_S)
    assert done.code == 0, done.err
    assert json.loads(done.out)["namespaces"] == ["other"]
    assert [fact.pod.key for fact in read(file) if isinstance(fact, PodSeen)] == ["other/of-other"]


async def test_a_report_is_printed_again_and_again(plane: ControlPlane) -> None:
    kubeconfig = plane.service_account("default", "kerf-shadow")
    command = await Command.start("shadow", "--kubeconfig", str(kubeconfig), "--every", "1s")
    assert command.process.stdout is not None
    first = await asyncio.wait_for(command.process.stdout.readline(), WITHIN_S)
    assert b"user-system-serviceaccount-default-kerf-shadow" in first
    command.process.send_signal(signal.SIGINT)
    done = await command.done(within_s=WITHIN_S)
    assert done.code == 0, done.err
    assert "grants" in done.out
    assert "user-system-serviceaccount-default-kerf-shadow" in done.out, "the one at the end"
    assert "Ctrl-C ends it with a report" in done.err
