"""Pods come in waves, Karpenter starts nodes, Kerf places; then all pods end, and Karpenter removes the nodes.

`nodes_started`: by Karpenter until all pods were served. `nodes_needed`: the fewest on which Kerf places all of them at
once, or did. `nodes_tainted`: how many Kerf had to mark as only looking free. `sixty_percent`: the same with pods that
mislead an autoscaler most by their sums, with the setting `autoscaler` of placement and without it. `never_fits`: one
pod that no node of the pool can take, which must not have nodes started without end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench import cluster
from bench.autoscale import needed
from bench.autoscale.karpenter import Karpenter
from cli import openb
from cli.stack import Stack, quiet_logs, stack
from shared.book.advertised import SLOTS_COUNTED, advertised
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.kube.transport import Transport
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Quantities
from shared.service import Lifecycle, load, running
from tools.control_plane import ControlPlane

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "karpenter"
TYPE, GPUS, MODEL, MEMORY_MIB = "g2.8", 8, "G2", openb.MEMORY_MIB["G2"]
ROOM: Quantities = {"cpu": "96", "memory": "384Gi", "pods": "110", "ephemeral-storage": "1Ti"}
REMOVED_WITHIN_S = 180.0
MERGE = "application/merge-patch+json"


def err(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def instance_types() -> list[dict[str, Any]]:
    """One type, as the most common GPU nodes of openb are. Its Kerf resources come from a NodeOverlay."""
    keys = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in keys.items()]
    offering = {"Price": 8.0, "Available": True, "Requirements": requirements}
    return [
        {
            "name": TYPE, "offerings": [offering], "architecture": "amd64", "operatingSystems": ["linux"],
            "resources": ROOM,
        }
    ]  # fmt: skip


def amounts() -> dict[str, str]:
    """What a node of the type advertises, for the NodeOverlay."""
    cards = tuple(Gpu(uuid=f"g{i}", index=i, model=MODEL, memory_mib=MEMORY_MIB) for i in range(GPUS))
    found = advertised(Inventory(node="n", boot_id="1", gpus=cards), 80 << 30)
    return {name: str(amount) for name, amount in found.items()} | {names.RESOURCE_SLOT: str(SLOTS_COUNTED)}


def karpenter_objects() -> list[dict[str, Any]]:
    """The NodePool and NodeOverlay that docs/autoscaling.md shows, for this provider and this instance type."""
    pool = yaml.safe_load((EXAMPLES / "nodepool.yaml").read_text())
    pool["spec"]["template"]["spec"]["nodeClassRef"] = {
        "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default",
    }  # fmt: skip
    pool["spec"]["template"]["spec"]["requirements"] = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [TYPE]}
    ]
    overlay = yaml.safe_load((EXAMPLES / "nodeoverlay.yaml").read_text())
    overlay["spec"]["requirements"] = pool["spec"]["template"]["spec"]["requirements"]
    overlay["spec"]["capacity"] = amounts()
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    return [node_class, overlay, pool]


PLURALS = {"KWOKNodeClass": "kwoknodeclasses", "NodeOverlay": "nodeoverlays", "NodePool": "nodepools"}


class Nodes:
    """For each node that Karpenter creates, what its kubelet and Kerf's agent would do."""

    def __init__(self, kube: Transport, running_stack: Stack, held: contextlib.AsyncExitStack) -> None:
        self._kube, self._stack, self._held = kube, running_stack, held
        self.started: set[str] = set()
        self.now: list[dict[str, Any]] = []

    async def look(self) -> None:
        """Starts the agents of new nodes."""
        answer = await self._kube.request("GET", "/api/v1/nodes", timeout_s=30.0)
        self.now = msgspec.json.decode(answer.body)["items"]
        for node in self.now:
            name = node["metadata"]["name"]
            if name not in self.started:
                self.started.add(name)
                await self._boot(name)
            taints = [t for t in node["spec"].get("taints", ()) if t["key"] != "node.kubernetes.io/not-ready"]
            if len(taints) != len(node["spec"].get("taints", ())):
                version = {"resourceVersion": node["metadata"]["resourceVersion"]}
                await self._patch(f"/api/v1/nodes/{name}", {"metadata": version, "spec": {"taints": taints}})

    async def _boot(self, name: str) -> None:
        hollow = {"name": name, "model": MODEL, "count": GPUS, "memory_mib": MEMORY_MIB, "nvlinks": 0}
        kind = load("node-agent")
        settings = Lifecycle(nats_url=self._stack.url, http_port=-1)
        config: Any = msgspec.convert({"hollow": [hollow]}, kind.config_type)
        await self._held.enter_async_context(running(kind, config, lifecycle=settings))
        slots = {names.RESOURCE_SLOT: str(SLOTS_COUNTED)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": slots | ROOM, "allocatable": slots, "conditions": [ready]}
        await self._patch(f"/api/v1/nodes/{name}/status", {"status": status})

    async def _patch(self, path: str, body: Any) -> None:
        answer = await self._kube.request("PATCH", path, msgspec.json.encode(body), content_type=MERGE)
        if answer.status not in (200, 404, 409):
            raise RuntimeError(f"{path}: {answer.status} {answer.body[:300]!r}")

    def tainted(self) -> set[str]:
        return {
            node["metadata"]["name"]
            for node in self.now
            if any(taint["key"] == names.TAINT_NO_ROOM for taint in node["spec"].get("taints", ()))
        }


def trace_mix(pods: int) -> list[dict[str, Any]]:
    """The first pods of openb that use GPUs. Their models are left out: the pool has one type of nodes."""
    chosen = [pod for pod in openb.pods(4 * pods) if pod.gpus][:pods]
    documents = [openb.manifest(pod, cluster.NAMESPACE) for pod in chosen]
    for document in documents:
        document["metadata"]["annotations"] = {}
    return documents


def sixty_percent(pods: int) -> list[dict[str, Any]]:
    """Pods of 60 % of a GPU: in sum 13 of them fit on a node of 8 GPUs, and in fact 8."""
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {names.RESOURCE_GPU_COMPUTE: "60"}}
    spec = {"containers": [{"name": "main", "image": "pause", "resources": resources}]}
    return [
        {"metadata": {"name": f"sixty-{number}", "namespace": cluster.NAMESPACE}, "spec": spec}
        for number in range(pods)
    ]


def never_fits() -> list[dict[str, Any]]:
    """A pod of a GPU model that no node has. No number of nodes helps it, and an autoscaler does not read the model."""
    (pod,) = sixty_percent(1)
    pod["metadata"] |= {"name": "never", "annotations": {names.ANNOTATION_GPU_MODEL: "B200"}}
    return [pod]


async def run(
    documents: list[dict[str, Any]], waves: int, timeout_s: float, state: Path, *, signals: bool = True
) -> dict[str, Any]:
    pods = len(documents)
    plane = ControlPlane(state / "kube").start()
    karpenter: Karpenter | None = None
    try:
        cluster.apply_policies(plane)
        kube = await cluster.transport(plane)
        account = str(plane.service_account("kerf-system", "kerf-watcher"))
        karpenter = Karpenter(plane, state, instance_types())
        for document in karpenter_objects():
            prefix = f"/apis/{document['apiVersion']}/{PLURALS[document['kind']]}"
            await _until(kube, prefix)
            await cluster.must(kube, "POST", prefix, document)
        async with contextlib.AsyncExitStack() as held:
            made = await held.enter_async_context(stack(kubeconfig=account, placement={"autoscaler": signals}))
            wanted: list[dict[str, Any]] = []
            bus = await NatsBus.connect(made.url, name="bench-autoscale")
            held.push_async_callback(bus.drain)

            async def heard(incoming: Any) -> None:
                wanted.append(msgspec.json.decode(incoming.payload)["data"])

            await bus.subscribe(f"{subjects.VERSION}.event.capacity.wanted.>", heard)
            nodes = Nodes(kube, made, held)
            began, tainted, served_s = time.monotonic(), set[str](), []
            for wave in range(waves):
                for document in documents[wave * pods // waves : (wave + 1) * pods // waves]:
                    await cluster.must(kube, "POST", f"/api/v1/namespaces/{cluster.NAMESPACE}/pods", document)
                since = time.monotonic()
                while time.monotonic() - since < timeout_s:
                    karpenter.check()
                    await nodes.look()
                    tainted |= nodes.tainted()
                    listed = await cluster.pods(kube)
                    waiting = [pod for pod in listed if not pod["spec"].get("nodeName")]
                    if not waiting:
                        break
                    await asyncio.sleep(0.5)
                served_s.append(round(time.monotonic() - since, 1))
                err(f"wave {wave + 1}: {len(listed)} pods, {len(waiting)} wait, {len(nodes.started)} nodes, "
                    f"{served_s[-1]} s")  # fmt: skip
            took_s = time.monotonic() - began
            started, used = len(nodes.started), len({pod["spec"]["nodeName"] for pod in listed if pod not in waiting})
            least = needed.fewest([_pending(pod) for pod in listed], ROOM | {names.RESOURCE_SLOT: str(SLOTS_COUNTED)},
                                  GPUS, MEMORY_MIB)  # fmt: skip
            if not waiting:
                least = min(least, used)
            await cluster.remove_pods(kube)
            removed_s = await _removed(nodes, karpenter, REMOVED_WITHIN_S)
        return {
            "pods": len(listed), "nodes_started": started, "nodes_used": used, "nodes_needed": least,
            "excess_nodes": started - least, "pods_never_served": len(waiting), "nodes_tainted": len(tainted),
            "capacity_wanted_events": len(wanted), "wave_served_s": served_s, "took_s": round(took_s, 1),
            "empty_nodes_removed_s": removed_s, "autoscaler": "Karpenter 1.14.1 with its KWOK provider",
        }  # fmt: skip
    finally:
        if karpenter is not None:
            karpenter.stop()
        plane.stop()


def _pending(pod: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    meta = {key: value for key, value in pod["metadata"].items() if key not in ("annotations", "managedFields")}
    return {"metadata": meta, "spec": spec}


async def _until(kube: Transport, path: str) -> None:
    """A CustomResourceDefinition is served a moment after it was accepted."""
    for _ in range(100):
        if (await kube.request("GET", path)).status == 200:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"{path} is not served")


async def _removed(nodes: Nodes, karpenter: Karpenter, timeout_s: float) -> float | None:
    """How long Karpenter takes to remove the empty nodes; None: they are still there."""
    since = time.monotonic()
    while time.monotonic() - since < timeout_s:
        karpenter.check()
        await nodes.look()
        if not nodes.now:
            return round(time.monotonic() - since, 1)
        await asyncio.sleep(0.5)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.autoscale", description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--waves", type=int, default=4)
    parser.add_argument("--timeout-s", type=float, default=180.0, help="of a wave, and of the removal")
    parser.add_argument("--sixty", type=int, default=40, help="pods of 60 %% of a GPU, with and without Kerf's signals")
    parser.add_argument("--state", type=Path, help="where logs stay; default: a temporary folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    quiet_logs()
    with contextlib.ExitStack() as kept:
        state = args.state or Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="kerf-autoscale-")))
        (state / "trace").mkdir(parents=True, exist_ok=True)
        result = asyncio.run(run(trace_mix(args.pods), args.waves, args.timeout_s, state / "trace"))
        for name, signals in (("with_signals", True), ("without_signals", False)):
            (state / name).mkdir(exist_ok=True)
            err(f"pods of 60 %, {name}")
            made = run(sixty_percent(args.sixty), 1, min(args.timeout_s, 60.0), state / name, signals=signals)
            result.setdefault("sixty_percent", {})[name] = asyncio.run(made)
        err("a pod that no node of the pool can take")
        (state / "never").mkdir(exist_ok=True)
        result["never_fits"] = asyncio.run(run(never_fits(), 1, min(args.timeout_s, 60.0), state / "never"))
    print(json.dumps(result) if args.json else "\n".join(f"{key:24} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
