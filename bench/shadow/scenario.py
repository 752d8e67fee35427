"""Recordings of a small cluster in the form of each peer: the same pods, placed by simple rules.

Two nodes of two GPUs; 28 pods that ask for a quarter, a half, one or two GPUs come every 40 seconds. Each second the
oldest pod that fits is bound: to the node, and there to the GPUs, with the most in use that still have room (HAMi: of
the node's GPUs those with the least). Pods run for 90 to 300 seconds. Where a peer's objects say which GPUs, so do
these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from shadow.objects import AnyFact, Began, Ended, NodeSeen, PodGone, PodSeen, SeenPod
from shadow.recording import line_of
from shared.model.objects import Node
from shared.model.timestamps import seconds_text

BEGAN_S = 1_790_000_000.0
GPU_MIB = 40_960
REPLICAS = 4
_PODS = 28
_EVERY_S = 40
_SIZES = ("half", "quarter", "whole", "half", "two", "quarter", "half")
_RUNS_S = (120, 300, 200, 90, 240)
_MILLI = {"quarter": 250, "half": 500, "whole": 1000, "two": 1000}
_UUIDS = {
    f"gpu-node-{node}": tuple(f"GPU-{node}{gpu}c0ffee-5c87-89ac-b1a6-7b53aa24b0e{gpu}" for gpu in range(2))
    for node in range(2)
}
Document = dict[str, Any]


class Placed(msgspec.Struct, kw_only=True):
    name: str
    size: str
    came_s: int
    bound_s: int
    ended_s: int
    node: str
    uuids: tuple[str, ...]


def placed(*, gpus: Callable[[int], int], whole_only: bool = False) -> list[Placed]:
    """What becomes of all pods.

    `gpus`: the key by which a node's GPUs are sorted, of the thousandths in use. `whole_only`: GPUs are not shared, so
    parts of one take all of it.
    """
    used = {uuid: 0 for uuids in _UUIDS.values() for uuid in uuids}
    waiting: list[tuple[int, int]] = []
    running: list[Placed] = []
    done: list[Placed] = []
    now = came = 0
    while came < _PODS or waiting or running:
        for one in [one for one in running if one.ended_s <= now]:
            running.remove(one)
            for uuid in one.uuids:
                used[uuid] -= 1000 if whole_only else _MILLI[one.size]
        if came < _PODS and came * _EVERY_S <= now:
            waiting.append((now, came))
            came += 1
        for came_s, number in waiting:
            size = _SIZES[number % len(_SIZES)]
            milli, count = 1000 if whole_only else _MILLI[size], 2 if size == "two" else 1
            fits = {n: [u for u in uuids if used[u] + milli <= 1000] for n, uuids in _UUIDS.items()}
            nodes = [n for n, free in fits.items() if len(free) >= count]
            if not nodes:
                continue
            node = max(nodes, key=lambda n: sum(used[u] for u in _UUIDS[n]))
            chosen = tuple(sorted(fits[node], key=lambda u: gpus(used[u]))[:count])
            for uuid in chosen:
                used[uuid] += milli
            one = Placed(
                name=f"train-{number:02d}",
                size=size,
                came_s=came_s,
                bound_s=now + 1,
                ended_s=now + 1 + _RUNS_S[number % len(_RUNS_S)],
                node=node,
                uuids=chosen,
            )
            running.append(one)
            done.append(one)
            waiting.remove((came_s, number))
            break
        now += 1
    return done


# --- objects --------------------------------------------------------------------------------------------------------


def _node(name: str, labels: dict[str, str], annotations: dict[str, str], allocatable: dict[str, str]) -> Node:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"} | allocatable
    document = {
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": name} | labels,
            "annotations": annotations,
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    return msgspec.convert(document, Node)


def _pod(one: Placed, form: Form, at_s: int, phase: str) -> SeenPod:
    limits, annotations, labels = form.asks(one.size)
    bound = phase != "Pending"
    if bound:
        gave, marks = form.gives(one)
        annotations, labels = annotations | gave, labels | marks
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds_text(BEGAN_S + one.bound_s)}]
    document = {
        "kind": "Pod",
        "metadata": {
            "name": one.name,
            "namespace": "research",
            "uid": f"uid-{one.name}",
            "resourceVersion": str(1000 + at_s),
            "creationTimestamp": seconds_text(BEGAN_S + one.came_s),
            "labels": {"size": one.size} | labels,
            "annotations": annotations,
        },
        "spec": {
            "nodeName": one.node if bound else "",
            "schedulerName": form.scheduler,
            "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}],
        },
        "status": {"phase": phase, "conditions": conditions if bound else []},
    }
    return msgspec.convert(document, SeenPod)


class Form:
    """How a peer's objects look."""

    scheduler = "default-scheduler"
    whole_only = False

    def gpus(self, used: int) -> int:
        return -used

    def node(self, name: str) -> Node:
        raise NotImplementedError

    def asks(self, size: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Limits, annotations and labels of a pod as its user writes it."""
        raise NotImplementedError

    def gives(self, one: Placed) -> tuple[dict[str, str], dict[str, str]]:  # noqa: ARG002 - most say nothing
        """Annotations and labels that the peer adds."""
        return {}, {}

    def beside(self, pods: list[Placed]) -> list[AnyFact]:  # noqa: ARG002 - as above
        """Further objects."""
        return []


def _text(one: Placed) -> str:
    milli = _MILLI[one.size]
    return "".join(f"{uuid},NVIDIA,{GPU_MIB * milli // 1000},{milli // 10}:" for uuid in one.uuids)


class Hami(Form):
    scheduler = "hami-scheduler"

    def gpus(self, used: int) -> int:
        return used

    def node(self, name: str) -> Node:
        found = [
            {"id": uuid, "index": index, "count": 10, "devmem": GPU_MIB, "devcore": 100,
             "type": "NVIDIA-NVIDIA A100-PCIE-40GB", "mode": "hami-core", "health": True}
            for index, uuid in enumerate(_UUIDS[name])
        ]  # fmt: skip
        # Go's omitempty leaves out the index of the first GPU.
        listed = [{key: value for key, value in one.items() if value} for one in found]
        return _node(
            name, {"gpu": "on"}, {"hami.io/node-nvidia-register": json.dumps(listed)}, {"nvidia.com/gpu": "20"}
        )

    def asks(self, size: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        milli = _MILLI[size]
        return (
            {
                "nvidia.com/gpu": "2" if size == "two" else "1",
                "nvidia.com/gpumem": str(GPU_MIB * milli // 1000),
                "nvidia.com/gpucores": str(milli // 10),
            },
            {},
            {},
        )

    def gives(self, one: Placed) -> tuple[dict[str, str], dict[str, str]]:
        return {
            "hami.io/bind-phase": "success",
            "hami.io/bind-time": str(int(BEGAN_S) + one.bound_s),
            "hami.io/vgpu-devices-allocated": f"{_text(one)};",
            "hami.io/vgpu-devices-to-allocate": ";",
            "hami.io/vgpu-node": one.node,
            "hami.io/vgpu-time": str(int(BEGAN_S) + one.bound_s),
        }, {}


class Volcano(Form):
    scheduler = "volcano"

    def node(self, name: str) -> Node:
        text = "".join(f"{uuid},10,{GPU_MIB},NVIDIA-NVIDIA A100-PCIE-40GB,true,hami-core:" for uuid in _UUIDS[name])
        amounts = {"volcano.sh/vgpu-number": "20", "volcano.sh/vgpu-memory": str(2 * GPU_MIB)}
        return _node(name, {}, {"volcano.sh/node-vgpu-register": text}, amounts)

    def asks(self, size: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        milli = _MILLI[size]
        return (
            {
                "volcano.sh/vgpu-number": "2" if size == "two" else "1",
                "volcano.sh/vgpu-memory": str(GPU_MIB * milli // 1000),
                "volcano.sh/vgpu-cores": str(milli // 10),
            },
            {"scheduling.k8s.io/group-name": f"podgroup-{size}"},
            {},
        )

    def gives(self, one: Placed) -> tuple[dict[str, str], dict[str, str]]:
        return {
            "volcano.sh/bind-phase": "success",
            "volcano.sh/devices-to-allocate": "",
            "volcano.sh/vgpu-ids-new": _text(one),
            "volcano.sh/vgpu-node": one.node,
            "volcano.sh/vgpu-time": str(int(BEGAN_S) + one.bound_s),
        }, {}


def _discovered(name: str, replicas: int = 1) -> Node:
    labels = {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.memory": str(GPU_MIB),
        "nvidia.com/gpu.product": "NVIDIA-A100-PCIE-40GB" + ("-SHARED" if replicas > 1 else ""),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.present": "true",
    }
    return _node(name, labels, {}, {"nvidia.com/gpu": str(2 * replicas)})


class Kai(Form):
    scheduler = "kai-scheduler"

    def node(self, name: str) -> Node:
        return _discovered(name)

    def asks(self, size: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        queue = {"kai.scheduler/queue": "research"}
        if size in ("whole", "two"):
            return {"nvidia.com/gpu": "2" if size == "two" else "1"}, {}, queue
        asked = {"gpu-fraction": "0.5"} if size == "half" else {"gpu-memory": str(GPU_MIB // 4)}
        return {}, asked, queue

    def gives(self, one: Placed) -> tuple[dict[str, str], dict[str, str]]:
        if one.size in ("whole", "two"):
            return {"received-resource-type": "Regular"}, {}
        return {"received-resource-type": "Fraction"}, {"runai-gpu-group": _group(one)}

    def beside(self, pods: list[Placed]) -> list[AnyFact]:
        """The reservation pods: there as long as a pod of their group is."""
        facts: list[AnyFact] = []
        shared = [one for one in pods if one.size in ("quarter", "half")]
        for uuid in dict.fromkeys(one.uuids[0] for one in shared):
            members = sorted((one for one in shared if one.uuids[0] == uuid), key=lambda one: one.bound_s)
            began: Placed | None = None
            until_s = 0
            for one in [*members, None]:
                if began is not None and (one is None or one.bound_s > until_s):
                    name = f"gpu-reservation-{began.name}"
                    facts.append(PodSeen(at_s=BEGAN_S + began.bound_s - 0.5, pod=_reservation(name, began)))
                    facts.append(PodGone(at_s=BEGAN_S + until_s + 0.5, uid=f"uid-{name}"))
                    began = None
                if one is not None:
                    began, until_s = began or one, max(until_s, one.ended_s)
        return facts


def _group(one: Placed) -> str:
    return f"group-of-{one.uuids[0][4:10]}"


def _reservation(name: str, one: Placed) -> SeenPod:
    document = {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "kai-resource-reservation",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": seconds_text(BEGAN_S + one.bound_s),
            "labels": {"app": "kai-resource-reservation", "runai-gpu-group": _group(one)},
            "annotations": {"karpenter.sh/do-not-disrupt": "true", "run.ai/reserve_for_gpu_index": one.uuids[0]},
        },
        "spec": {
            "nodeName": one.node,
            "containers": [{"name": "resource-reservation", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running"},
    }
    return msgspec.convert(document, SeenPod)


class Nvidia(Form):
    whole_only = True

    def node(self, name: str) -> Node:
        return _discovered(name)

    def asks(self, size: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        return {"nvidia.com/gpu": "2" if size == "two" else "1"}, {}, {}


class TimeSlicing(Form):
    def node(self, name: str) -> Node:
        return _discovered(name, REPLICAS)

    def asks(self, size: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        replicas = {"quarter": 1, "half": 2, "whole": 4, "two": 8}
        return {"nvidia.com/gpu": str(replicas[size])}, {}, {}


FORMS: dict[str, Form] = {
    "hami": Hami(),
    "kai": Kai(),
    "nvidia": Nvidia(),
    "time-slicing": TimeSlicing(),
    "volcano": Volcano(),
}


def facts_of(form: Form) -> list[AnyFact]:
    pods = placed(gpus=form.gpus, whole_only=form.whole_only)
    facts: list[AnyFact] = [Began(at_s=BEGAN_S, source=f"objects made after the forms of {type(form).__name__}")]
    facts += [NodeSeen(at_s=BEGAN_S, node=form.node(name)) for name in _UUIDS]
    changes: list[AnyFact] = form.beside(pods)
    for one in pods:
        for at_s, phase in ((one.came_s, "Pending"), (one.bound_s, "Running"), (one.ended_s, "Succeeded")):
            changes.append(PodSeen(at_s=BEGAN_S + at_s, pod=_pod(one, form, at_s, phase)))
        changes.append(PodGone(at_s=BEGAN_S + one.ended_s + 30, uid=f"uid-{one.name}"))
    # Of one time, what ends comes first.
    ended = {"Succeeded": 0, "Running": 2, "Pending": 3}
    changes.sort(key=lambda fact: (fact.at_s, ended[fact.pod.status.phase] if isinstance(fact, PodSeen) else 1))
    return [*facts, *changes, Ended(at_s=changes[-1].at_s)]


def write(peer: str, path: Path) -> None:
    path.write_bytes(b"".join(line_of(fact) for fact in facts_of(FORMS[peer])))
