"""HAMi's parts as stand-ins: webhook, scheduler and device plugin.

They write what HAMi writes: Project-HAMi/HAMi `pkg/scheduler/webhook.go` (schedulerName, and one GPU where only memory
or cores are named), `charts/hami/templates/scheduler/webhook.yaml` (label hami.io/webhook=ignore on a namespace or a
pod), `docs/develop/protocol.md` (annotations of nodes and pods), `charts/hami/values.yaml` (node selector gpu=on).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from shared.kube.resources import POD
from shared.kube.sender import Send
from shared.kube.transport import MERGE_PATCH
from shared.model.objects import Node, Pod
from shared.model.units import quantity
from tests.support.migration.view import TERMINAL, View, hami_devices

SCHEDULER = "hami-scheduler"
ACCOUNT = ("kube-system", "hami-scheduler")
_NAME = "hami-webhook"


def rights() -> list[dict[str, Any]]:
    """HAMi's ClusterRole and the two bindings of its account that matter here."""
    group = "rbac.authorization.k8s.io"
    subject = [{"kind": "ServiceAccount", "namespace": ACCOUNT[0], "name": ACCOUNT[1]}]
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "list", "watch", "patch"]},
    ]
    kind = {"apiVersion": f"{group}/v1"}

    def bound(role: str) -> dict[str, Any]:
        ref = {"apiGroup": group, "kind": "ClusterRole", "name": role}
        name = {"name": f"hami-{role.replace(':', '-')}"}
        return kind | {"kind": "ClusterRoleBinding", "metadata": name, "roleRef": ref, "subjects": subject}

    role = kind | {"kind": "ClusterRole", "metadata": {"name": SCHEDULER}, "rules": rules}
    return [role, bound(SCHEDULER), bound("system:kube-scheduler")]


def webhook() -> list[dict[str, Any]]:
    """HAMi's webhook as a policy of the API server, which runs before webhooks, as hami-webhook does before Kerf's. One
    GPU is added to the first container alone."""
    api = "admissionregistration.k8s.io/v1"
    ignored = [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    own = "['nvidia.com/gpumem', 'nvidia.com/gpumem-percentage', 'nvidia.com/gpucores']"
    limits = "c.?resources.?limits.orValue({})"
    asks = f"object.spec.containers.exists(c, {limits}.exists(k, k == 'nvidia.com/gpu' || k in {own}))"
    free = "object.spec.?schedulerName.orValue('') in ['', 'default-scheduler', 'hami-scheduler']"
    named = "Object{spec: Object.spec{schedulerName: 'hami-scheduler'}}"
    first = "object.spec.containers[0].?resources.?limits.orValue({})"
    counted = (
        f"{first}.exists(k, k in {own}) && !('nvidia.com/gpu' in {first}) ? "
        "[JSONPatch{op: 'add', path: '/spec/containers/0/resources/limits/nvidia.com~1gpu', value: '1'}] : []"
    )
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": {"matchExpressions": ignored},
            "objectSelector": {"matchExpressions": ignored},
            "resourceRules": [rule],
        },
        "matchConditions": [{"name": "asks", "expression": asks}, {"name": "free", "expression": free}],
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": named}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": counted}},
        ],
    }
    policy = {"apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": {"name": _NAME}, "spec": spec}
    binding = {"kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": _NAME}, "spec": {"policyName": _NAME}}
    return [policy, {"apiVersion": api} | binding]


class Hami:
    """The scheduler and the device plugins. `gpus`: the UUIDs of each node's GPUs."""

    def __init__(self, view: View, send: Send, gpus: dict[str, list[str]], memory_mib: int) -> None:
        self.view, self._send, self._gpus, self._memory_mib = view, send, gpus, memory_mib
        self._given: dict[str, list[tuple[str, int, int]]] = {}
        """What pods have, by uid: what was just written is in no watch yet."""
        self.refused: list[str] = []

    async def register(self) -> None:
        """The device plugin runs where its label is, and says so in the node's annotations and resources."""
        for node in list(self.view.nodes.values()):
            here = node.metadata.labels.get("gpu") == "on"
            amount = "40" if here else "0"
            if node.metadata.name not in self._gpus or node.status.allocatable.get("nvidia.com/gpu", "0") == amount:
                continue
            path = f"/api/v1/nodes/{node.metadata.name}"
            devices = (f"{u},10,{self._memory_mib},100,NVIDIA-A100,0,true,{i},hami-core" for i, u in self._of(node))
            notes = {
                "hami.io/node-handshake": "Reported" if here else "Deleted_2026.01.01 00:00:00",
                "hami.io/node-nvidia-register": "".join(f"{device}:" for device in devices),
            }
            await self._patch(path, {"metadata": {"annotations": notes}})
            amounts = {"nvidia.com/gpu": amount}
            await self._patch(f"{path}/status", {"status": {"capacity": amounts, "allocatable": amounts}})

    async def schedule(self) -> None:
        """Fills the first node that has room, and on it the first GPUs that have."""
        known = {uid: pod for uid, pod in self.view.pods.items() if pod.status.phase not in TERMINAL}
        self._given = {
            uid: self._given.get(uid) or hami_devices(pod)
            for uid, pod in known.items()
            if uid in self._given or hami_devices(pod)
        }
        for uid, pod in sorted(known.items(), key=lambda item: item[1].metadata.creation_timestamp):
            waits = not pod.spec.node_name and pod.metadata.deletion_timestamp is None
            if pod.spec.scheduler_name != SCHEDULER or not waits:
                continue
            if uid not in self._given:
                await self._bind(pod)

    async def _bind(self, pod: Pod) -> None:
        for name in sorted(self._gpus):
            node = self.view.nodes.get(name)
            devices = self._choose(pod, node) if node is not None and self._takes(node, pod) else None
            if devices is None:
                continue
            text = "".join(f"{uuid},NVIDIA,{mib},{cores}:" for uuid, mib, cores in devices) + ";"
            keys = ("hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate")
            notes = dict.fromkeys(keys, text) | {"hami.io/vgpu-node": name}
            path = POD.path(pod.metadata.name, pod.metadata.namespace)
            self._given[pod.metadata.uid] = devices
            done = await self._patch(path, {"metadata": {"annotations": notes}})
            target = {"apiVersion": "v1", "kind": "Node", "name": name}
            body = {"metadata": {"name": pod.metadata.name, "uid": pod.metadata.uid}, "target": target}
            said = await self._send("POST", f"{path}/binding", body) if done else None
            if said is not None and said.outcome != "done":
                self.refused.append(said.message)
            return

    def _takes(self, node: Node, pod: Pod) -> bool:
        tolerated = {one.key for one in pod.spec.tolerations if one.operator == "Exists"}
        barred = any(t.effect == "NoSchedule" and t.key not in tolerated for t in node.spec.taints)
        return node.metadata.labels.get("gpu") == "on" and not node.spec.unschedulable and not barred

    def _choose(self, pod: Pod, node: Node) -> list[tuple[str, int, int]] | None:
        (container,) = pod.spec.containers
        named = container.resources.limits.items()
        limits = {key.removeprefix("nvidia.com/"): int(quantity(v)) for key, v in named if "/" in key}
        percent = limits.get("gpumem-percentage", 100)
        mib, cores = limits.get("gpumem", self._memory_mib * percent // 100), limits.get("gpucores", 0)
        used: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for devices in self._given.values():
            for uuid, taken_mib, taken_cores in devices:
                used[uuid][0] += taken_mib
                used[uuid][1] += taken_cores
        fits = [
            uuid
            for _, uuid in self._of(node)
            if used[uuid][0] + mib <= self._memory_mib and used[uuid][1] + cores <= 100
        ]
        count = limits["gpu"]
        return [(uuid, mib, cores) for uuid in fits[:count]] if len(fits) >= count else None

    def _of(self, node: Node) -> list[tuple[int, str]]:
        return list(enumerate(self._gpus[node.metadata.name]))

    async def _patch(self, path: str, body: dict[str, Any]) -> bool:
        """False where the object is gone by now."""
        said = await self._send("PATCH", path, body, content_type=MERGE_PATCH)
        assert said.outcome in ("done", "gone"), said
        return said.outcome == "done"
